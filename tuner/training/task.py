"""Task: the user's functions that define what a trial trains. TrialSpec: a trial's setting, options and seed."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors.one_line import in_one_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from tuner.training.data import Splits

Config = Mapping[str, Any]
Metric = Callable[["Tensor", "Tensor"], "Tensor | float"]
METRICS = ("metrics", "final_metrics", "model_metrics")  # fields of a Task that have a function for each name


def callable_with(function: Any, *arguments: Any) -> bool:
    """Whether a function can be called with these arguments; True if it has no signature, as some built-ins."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)
    return True


@dataclass(frozen=True)
class mean_of_batches:
    """A metric of a Task that is computed for each batch, and averaged over the examples.

    Other metrics get the outputs and targets of all examples at once. This one needs less memory, and gives the same
    only if the metric is a mean over examples, as accuracy is and F1 is not.
    """

    metric: Metric

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor | float:
        return self.metric(outputs, targets)


def streams(metric: object) -> bool:
    """Whether a metric collects batches itself, by `update(outputs, targets)`, and then has `compute()`."""
    return callable(getattr(metric, "update", None)) and callable(getattr(metric, "compute", None))


@dataclass(frozen=True, kw_only=True)
class Task:
    """The functions from which a trial gets its training loop, checkpoints, exact resume and metrics.

    Args:
        data: `data(data_dir)` or `data()` returns `Splits`, a pair (train, test), a dict of parts such as `train`, or a
            data set to train on; `data_dir` is a Path, or None without --data-dir.
        model: `model(config) -> nn.Module`, written for one device and built on the CPU; tuner moves it.
        optimizer: `optimizer(parameters, config) -> Optimizer`.
        loss: `loss(outputs, targets) -> Tensor`, a mean over the batch; None = cross-entropy. Modules that it uses by
            name, and that the optimizer trains, are saved and restored with the model.
        training_loss: `training_loss(outputs, targets, config) -> Tensor`, a mean over the batch; None = `loss`. It may
            depend on the setting, as label smoothing does; the validation part is measured with `loss`.
        metrics: name -> `metric(outputs, targets)` of all examples of the validation part at once, a tensor with one
            value or a number; reported beside `loss`. A metric with `update(outputs, targets)` and `compute()`, such as
            one of torchmetrics, gets the batches one by one, as does one in `mean_of_batches`.
        final_metrics: like `metrics`, but computed once per trial, in the report with which the trial completes: that
            of its last epoch, or one that reaches a value of `Space(stop=...)`. They are for metrics that take long. A
            trial that a rule stops early, that fails or is interrupted has none. `Space(metric=...)` may be one of
            them if `Space(prune_by=...)` names a metric of every report. The test part is measured with them, too.
        model_metrics: name -> `metric(model)`, a number that depends on the model alone, such as its size or the time
            of a prediction; reported after each epoch, with the model in evaluation mode and without gradients.
        schedule: `schedule(optimizer, config, max_epochs) -> LRScheduler`; stepped once per epoch.
        prepare: `prepare(inputs) -> Tensor` converts stored inputs, such as uint8 images, to what the model takes. It
            runs on many inputs on the trial's device, and on single inputs on the CPU. It must be deterministic.
        augment: `augment(inputs) -> Tensor` changes a prepared training batch, on the trial's device.
        batch_size: the batch size if the config has no `batch_size`.
        validation_fraction: the share of `train`, in (0, 1), that becomes the validation part if `data` returns none.
        channels_last: whether the faster channels-last memory format may be used on a CPU. The model must then take 4-D
            inputs and must not call `view` on the output of a convolution.
        compile: whether to train with torch.compile, which may change metrics slightly; a CPU needs a C++ compiler.
        stages: `stages(model) -> [module, ...]` cuts the model for strategies `model` and `pipeline`. Each module takes
            the output of the one before. An nn.Sequential of 2 or more layers needs no `stages`.
        split_size: examples per micro-batch of the strategy `pipeline`, if the config has no `split_size`.
    """

    data: Callable[[Path | None], Splits | Any] | Callable[[], Splits | Any]
    model: Callable[[Config], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter], Config], torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    training_loss: Callable[[Tensor, Tensor, Config], Tensor] | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    final_metrics: Mapping[str, Metric] = field(default_factory=dict)
    model_metrics: Mapping[str, Callable[[nn.Module], Tensor | float]] = field(default_factory=dict)
    schedule: Callable[[torch.optim.Optimizer, Config, int], Any] | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    batch_size: int = 32
    validation_fraction: float = 0.2
    channels_last: bool = False
    compile: bool = False
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    split_size: int = 20

    @in_one_line()
    def __post_init__(self) -> None:
        for name in ("data", "model", "optimizer", "loss", "training_loss", "schedule", "prepare", "augment", "stages"):
            self._check(name, getattr(self, name), optional=name not in ("data", "model", "optimizer"))
        seen: dict[str, str] = {}
        for each in METRICS:
            metrics = getattr(self, each)
            if not isinstance(metrics, Mapping):
                raise ValueError(f"Task({each}=...) is a {type(metrics).__name__}: give a dict, name -> function")
            for name, metric in metrics.items():
                self._check(f"{each}[{name!r}]", metric)
            for name in [own for own in ("loss", "train_loss") if own in metrics]:
                raise ValueError(f"Task({each}=...) has {name!r}, which every task reports itself; rename the metric")
            for name in [other for other in seen if other in metrics]:
                raise ValueError(f"Task: {seen[name]} and {each} both have {name!r}; leave it out of one of them")
            seen |= dict.fromkeys(metrics, each)

    @property
    def all_metrics(self) -> dict[str, Metric]:
        return {**self.metrics, **self.final_metrics}

    def batch_size_of(self, config: Config) -> int:
        """Return the batch size of a setting; raises ValueError unless it is an integer >= 1."""
        return whole_number("batch_size", config.get("batch_size", self.batch_size))

    def _check(self, name: str, value: object, optional: bool = False) -> None:
        if not (callable(value) or streams(value) or (optional and value is None)):
            what = "None" if value is None else f"a {type(value).__name__}"
            raise ValueError(f"Task({name}=...) is {what}: give the function itself, not the result of a call")


@dataclass(frozen=True)
class TrialSpec:
    """What a process needs to know to train one trial, apart from its task and data.

    Args:
        config: the setting. Its `batch_size` and `split_size` override the task's, its `precision` the one below.
        seed: the trial's own seed (`trial_seed`), at least 0.
        precision, on_oom, strategy: as the options of these names.
        num_workers: number of processes that train the trial; more than 1 only with ddp.
        cpus, gpus: number of CPUs and GPUs of the whole trial.
    """

    config: Config
    seed: int
    max_epochs: int
    precision: str = "fp32"
    on_oom: str = "shrink"
    strategy: str = "single"
    num_workers: int = 1
    cpus: float = 1
    gpus: float = 0

    @property
    def num_threads(self) -> int:
        return max(1, int(self.cpus / self.num_workers))


def whole_config(
    parameters: Config, constants: Config | None = None, *, data_constants: Config | None = None,
    seed: int | None = None, length: str = "", max_epochs: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Return the whole setting of a trial, which its functions get as `config`.

    Its sampled parameters take precedence over the space's constants, which it gets as a copy, and both over
    `Splits.constants`. `seed` is None, and `length`, the name of `max_epochs`, is empty unless its function gets them.
    """
    constants, own = constants or {}, {} if seed is None else {"seed": seed}
    nested = (name for name in constants if isinstance(parameters.get(name), Mapping))
    both = {name: whole_config(parameters[name], constants[name]) for name in nested}
    whole = {**(data_constants or {}), **copy.deepcopy(dict(constants)), **parameters, **both}
    return whole | own | ({length: max_epochs} if length else {})


def trial_seed(seed: int, trial_id: str) -> int:
    """The seed of a trial's random streams, from the experiment's seed and `trial_id`, a number as text."""
    import numpy as np

    return int(np.random.SeedSequence((seed, int(trial_id))).generate_state(1)[0])


def reseed(seed: int, *, epoch: int, rank: int = 0, devices: bool = True) -> None:
    """Seeds the global random streams of Python, numpy and torch (with `devices`) from seed, epoch, and a rank above 0.

    Epoch 0 stands for the data function and the construction of the model.
    """
    import numpy as np
    import torch

    words = np.random.SeedSequence(seed, spawn_key=(epoch, rank) if rank else (epoch,)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    seed_torch = torch.manual_seed if devices else torch.default_generator.manual_seed
    seed_torch(int(words[2]))


@contextlib.contextmanager
def kept_streams() -> Iterator[None]:
    """On exit, restores the random streams of Python, numpy and torch's CPU generator as they were on entry."""
    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def whole_number(name: str, value: object) -> int:
    """Converts a parameter's value, which may be numpy's, to an int; raises ValueError unless it is an integer >= 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        more = ", as tune.randint(8, 33) or tune.choice([8, 16]) do" if isinstance(value, float) else ""
        raise ValueError(f"{name} is {value!r}: give an integer of at least 1{more}")
    return int(value)
