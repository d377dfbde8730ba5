"""Space: the searched parameters, what a trial trains, and the metric; checked when it is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.spec import domains
from tuner.training.task import Task


@dataclass(frozen=True, kw_only=True)
class Space:
    """The searched parameters, what a trial trains, and the metric. A space file names it `space`, at module level.

    Args:
        params: name -> Ray domain (`tune.choice`, `tune.loguniform`, ...); dictionaries may be nested.
        task: the training functions. Give either `task` or `train`.
        train: any function that Ray Tune accepts: `train(config)` that calls `ray.tune.report`.
        metric: the reported metric to optimize.
        mode: "min" or "max": whether to minimize or maximize the metric.
        max_epochs: maximum epochs (reports) per trial; ASHA's `max_t`.
        num_samples, grace_period, reduction_factor: defaults of the search; command-line options take precedence.
        strategy, workers_per_trial: how to train a trial of the task; command-line options take precedence.
        mutable: parameters that pbt may change while a trial trains ("lr", "momentum", "weight_decay").

    Raises:
        ValueError: a parameter or field is wrong; the text names it, its value and what is allowed.
    """

    params: Mapping[str, Any]
    task: Task | None = None
    train: Callable[[dict[str, Any]], Any] | None = None
    metric: str = "loss"
    mode: str = "min"
    max_epochs: int = 10
    num_samples: int = 10
    grace_period: int = 1
    reduction_factor: float = 2
    strategy: str = "single"
    workers_per_trial: int = 1
    mutable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.task is None) == (self.train is None):
            raise ValueError("Space needs exactly one of task= and train=")
        if not isinstance(self.params, Mapping):
            raise ValueError(f"params is a {type(self.params).__name__}: must be a dict, name -> search domain")
        if not self.params:
            raise ValueError("Space has no params: there is nothing to search")
        if self.train is not None and not _takes_config(self.train):
            raise ValueError(f"train={self.train!r}: must be a function of one argument, the config")
        for name, domain in domains.leaves(self.params):
            try:
                domains.check_domain(domain)
            except ValueError as error:
                raise ValueError(f"parameter {name!r}: {error}") from None
        for name in ("max_epochs", "num_samples", "grace_period", "workers_per_trial"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a whole number")
        names = [name for name, _ in domains.leaves(self.params)]
        for name in self.mutable:
            if name not in names or "/" in name:
                what = "is a nested parameter" if name in names else f"is no parameter; give one of {', '.join(names)}"
                raise ValueError(f"mutable names {name!r}, which {what}")

    def reported(self) -> set[str] | None:
        """The metrics that every report has; None for `train`, whose metrics are known only when a trial runs."""
        if self.task is None:
            return None
        return {"loss", "train_loss", *self.task.metrics}


def _takes_config(train: Any) -> bool:
    try:
        inspect.signature(train).bind({})
        return True
    except TypeError:
        return False
    except ValueError:
        return True  # a built-in function without a signature
