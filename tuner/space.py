"""Names to import in a space's file: Space; Task, which says what a trial trains; mean_of_batches; Config, a type."""

from tuner.spec.space import Space
from tuner.training.task import Config, Task, mean_of_batches

__all__ = ["Config", "Space", "Task", "mean_of_batches"]
