"""Names to import in a space's file: Space; Task, which says what a trial trains; Config, a setting's type."""

from tuner.spec.space import Space
from tuner.training.task import Config, Task

__all__ = ["Config", "Space", "Task"]
