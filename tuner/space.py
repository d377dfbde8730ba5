"""What a file of `search_spaces/` imports: a Space, and the Task that its trials train."""

from tuner.spec.space import Space
from tuner.training.task import Config, Task

__all__ = ["Config", "Space", "Task"]
