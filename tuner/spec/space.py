"""Space: what is searched, what a trial trains and what is measured; checked when built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.spec import domains
from tuner.training.task import Task


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is searched, what a trial trains and what is measured; built at module level as `space`.

    Args:
        params: name -> Ray domain (`tune.choice`, `tune.loguniform`, ...), nested dictionaries allowed.
        task: the training functions; or
        train: any function that Ray Tune accepts, `train(config)` calling `ray.tune.report`.
        metric: the name in the reports that the search goes by; `mode` is "min" or "max".
        max_epochs: reports a trial makes at most (ASHA's `max_t`).
        num_samples, grace_period, reduction_factor: the search's defaults; options of the command line go first.
        strategy, workers_per_trial: how a trial of the task is trained, unless the command line says otherwise.
        mutable: parameters that may change while a trial trains, as pbt does ("lr", "momentum", "weight_decay").

    Raises:
        ValueError: naming the parameter or field, what was given and what is allowed.
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
            raise ValueError("Space takes either task= or train=, exactly one of them")
        if not isinstance(self.params, Mapping):
            raise ValueError(f"params is a {type(self.params).__name__}: must be a dict, name -> search domain")
        if not self.params:
            raise ValueError("Space has no params: there is nothing to search")
        if self.train is not None and not _takes_config(self.train):
            raise ValueError(f"train={self.train!r}: must be a function of one argument, the config")
        for name, domain in domains.leaves(self.params):
            try:
                domains.check(domain)
            except ValueError as error:
                raise ValueError(f"parameter {name!r}: {error}") from None
        for name in ("max_epochs", "num_samples", "grace_period", "workers_per_trial"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a whole number")
        names = [name for name, _ in domains.leaves(self.params)]
        for name in self.mutable:
            if name not in names or "/" in name:
                what = "is inside another" if name in names else f"is no parameter; the parameters: {', '.join(names)}"
                raise ValueError(f"mutable names {name!r}, which {what}")

    def reported(self) -> set[str] | None:
        """The names that every report has, where they are known before a trial ran; None for `train`."""
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
        return True  # a built-in function that does not say
