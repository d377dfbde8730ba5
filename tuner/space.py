"""The names that a space file imports: Space, and Task, which defines what the trials of a space train."""

from tuner.spec.space import Space
from tuner.training.task import Config, Task

__all__ = ["Config", "Space", "Task"]
