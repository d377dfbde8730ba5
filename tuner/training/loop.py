"""The training of one trial: trains and validates epoch by epoch, and can be repeated or resumed exactly."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import time
import warnings
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tuner.training import beside, doubts
from tuner.training.batches import Examples, examples_of
from tuner.training.data import DataSplit, Splits
from tuner.training.devices import accelerator
from tuner.training.devices.compiler import import_compiler_late
from tuner.training.devices.precision import Precision
from tuner.training.metrics import WholePart, as_measure
from tuner.training.micro_batches import MicroBatcher, check_mean
from tuner.training.options import keep_changes, names_changed, options_of
from tuner.training.parallel import STRATEGIES, Measure
from tuner.training.plain import load_plain
from tuner.training.task import Task, TrialSpec, mean_of_batches, reseed, whole_config

logger = logging.getLogger(__name__)
ZERO_GRAD = torch.optim.Optimizer.zero_grad
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
NUM_CHECKED = 8  # parts of batches whose loss must be a mean over examples; one alone may be so by chance
SMALL_CONVOLUTION = 1_500_000  # oneDNN is slower up to this many multiply-adds per batch in the largest convolution


class Training:
    """Trains one setting epoch by epoch. The same seed gives the same metrics, bit for bit on a CPU.

    The metrics may differ with another number of threads, with `Task.compile`, or if memory runs out at another step.
    Each epoch seeds the global random streams from seed, epoch and rank, so a saved state needs no random state.

    Args:
        splits: the data, with a validation part (see `hold_out`).
        spec: the setting, and how to train it; `run_epoch` does not stop at its `max_epochs`.
        rank: the number of this process in a ddp trial, whose processes build, train and evaluate together.
        device: the torch device to train on; None = cuda if the trial has GPUs, else cpu.

    Raises ValueError for a wrong setting, a missing or empty part of the data, or a strategy unsuited to the model.
    """

    def __init__(
        self, task: Task, splits: Splits, spec: TrialSpec, *, rank: int = 0, device: str | None = None
    ) -> None:
        if splits.validation is None:
            raise ValueError("the splits have no validation part: make one with tuner.training.data.hold_out")
        if not task.compile:
            import_compiler_late()
        self.task, self.spec, self.rank = task, spec, rank
        self.epoch = 0  # finished epochs
        self.config = config = whole_config(spec.config, data_constants=splits.constants)
        num_devices = 1 if spec.strategy in ("single", "ddp") else max(1, int(spec.gpus))
        devices = accelerator.here.devices(device or ("cuda" if spec.gpus else "cpu"), num_devices)
        self.device = devices[0]
        self.batch_size = task.batch_size_of(config)
        self.precision = Precision(config.get("precision", spec.precision), self.device)
        self.generators = [torch.default_generator, *accelerator.here.generators(devices)]
        self.strategy = STRATEGIES[spec.strategy](task, config, devices, rank, spec.num_workers)
        shrink = spec.on_oom == "shrink"
        self.train_fit = MicroBatcher("training", shrink=shrink and self.strategy.shrinks)
        self.evaluate_fit = MicroBatcher("evaluation", shrink=shrink)
        self.train_examples = examples_of(splits.train, task, self.device)
        self.validation_examples = examples_of(splits.validation, task, self.device)
        reseed(spec.seed, epoch=0)
        self.model = task.model(config)
        # On a CPU, channels last halves the time of a step with 16 or more CIFAR images.
        on_cpu, share = self.device.type == "cpu", self.strategy.share_of(self.batch_size)
        fast = torch.channels_last if on_cpu and task.channels_last else torch.contiguous_format
        self.onednn = not (on_cpu and small_convolutions(self.model, self.train_examples.sample, share))
        self.train_format, self.evaluate_format = fast if self.onednn else torch.contiguous_format, fast
        self.model.to(memory_format=self.train_format)
        self.network, self.evaluated = self.strategy.networks(self.model)
        loss, training_loss = task.loss or nn.functional.cross_entropy, task.training_loss
        minimized = (lambda outputs, targets: training_loss(outputs, targets, config)) if training_loss else loss
        self.training_loss = self.strategy.measure(minimized)
        self.num_unchecked = NUM_CHECKED
        means = {name: each for name, each in task.all_metrics.items() if isinstance(each, mean_of_batches)}
        measures = {"loss": loss, **{name: as_measure(metric) for name, metric in means.items()}}
        self.measures = {name: self.strategy.measure(measure) for name, measure in measures.items()}
        self.whole = {name: each for name, each in task.all_metrics.items() if name not in means}
        self.names = {"loss", *task.all_metrics, *task.model_metrics}
        self.parameters = list(self.model.parameters())
        self.optimizer = task.optimizer(self.parameters, config)
        self.beside = beside.modules_beside(task, self.model, self.optimizer).to(self.device)
        if len(self.beside) and self.strategy.num_workers > 1:
            what = f"the optimizer also trains a {type(self.beside[0]).__name__}, whose gradients ddp does not average"
            raise ValueError(f"{what}; make it a part of the model, or give --strategy single")
        unscheduled = [dict(group) for group in self.optimizer.param_groups]
        self.schedule = task.schedule(self.optimizer, config, spec.max_epochs) if task.schedule else None
        self.scheduled = partial(names_changed, self.optimizer, unscheduled)
        self.options = options_of([self.optimizer])
        functions = {name: each for name, each in vars(task).items() if name != "data"}
        self.own_generators = beside.generators_in(functions, self.model)
        self.attributes = beside.attributes_of(self.model)
        self.first_loss: float | None = None  # of the first validation batch, after the last epoch
        self.doubt = ""  # why a checkpoint may lack some of the training's state

    def run_epoch(self) -> dict[str, Any]:
        """Trains one epoch, validates, and returns the report.

        The report has the task's metrics and `loss` on the validation part, and `train_loss`; losses are means over
        the examples of all processes. The report of the last epoch has the task's final metrics, too.
        After `restore`, the first report also has its `doubt`, a text, if there is one.
        `micro_batch_size` is the most examples that one process trains on at once. `train_s` and `validate_s` are
        seconds; `images_per_s` is training examples per second.
        """
        started = time.perf_counter()
        train_loss = self.train_epoch()
        trained = time.perf_counter()
        names = self.names if self.epoch >= self.spec.max_epochs else self.names - self.task.final_metrics.keys()
        report: dict[str, Any] = {**self.evaluate_examples(self.validation_examples, names)}
        if self.doubt:
            report["doubt"], self.doubt = self.doubt, ""
        return report | {
            "train_loss": train_loss,
            "micro_batch_size": self.train_fit.size(self.strategy.share_of(self.batch_size)),
            "train_s": trained - started,
            "validate_s": time.perf_counter() - trained,
            "images_per_s": len(self.train_examples) / (trained - started),
        }

    def train_epoch(self) -> float:
        seed, epoch = self.spec.seed, self.epoch + 1
        reseed(seed, epoch=epoch)
        order = torch.randperm(len(self.train_examples))  # the same in every process: all have the same seed here
        if self.rank:
            reseed(seed, epoch=epoch, rank=self.rank)  # else ranks draw the same dropout masks
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.network.train()
        batches = self.strategy.batches(self.train_examples, order, self.batch_size, self.train_format)
        with onednn(self.onednn):
            for inputs, targets in batches:
                total.add_(self.train_step(inputs, targets), alpha=targets.shape[0] / self.strategy.repeated)
        if self.schedule is not None:
            self.schedule.step()
        self.epoch = epoch
        self.strategy.broadcast_buffers(self.model)
        return float(self.strategy.total(total)) / len(self.train_examples)  # one read: it waits for the device

    def train_step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Updates the parameters once; returns the mean loss of this process's part of a batch."""
        if self.task.augment is not None:
            inputs = self.task.augment(inputs)
        states = [generator.get_state() for generator in self.generators]  # 1 us per generator
        work, undo = partial(self.gradients, inputs, targets), partial(self.undo, states)
        loss = self.train_fit(work, targets.shape[0], undo)
        self.precision.step(self.optimizer)
        self.empty_gradients()
        return loss

    def gradients(self, inputs: Tensor, targets: Tensor, size: int) -> Tensor:
        """Adds up the gradients of the mean loss, `size` examples at a time; returns the loss, detached."""
        num_examples = targets.shape[0]
        if num_examples <= size:
            return self.backward(inputs, targets, 1)
        losses = []
        for start in range(0, num_examples, size):
            some, labels = inputs[start : start + size], targets[start : start + size]
            is_last = start + size >= num_examples
            with contextlib.nullcontext() if is_last else self.strategy.accumulating():
                losses.append(self.backward(some, labels, len(labels) / num_examples))
        return torch.stack(losses).sum()

    def backward(self, inputs: Tensor, targets: Tensor, share: float) -> Tensor:
        outputs = self.precision.forward(self.network, inputs)
        loss = self.training_loss(outputs, targets)
        if share != 1 or self.strategy.num_workers > 1:
            if self.num_unchecked:
                self.num_unchecked -= 1
                check_mean(self.training_loss, outputs, targets)
            loss = loss * share
        self.precision.backward(loss if self.strategy.weight == 1 else loss * self.strategy.weight)
        return loss.detach()

    def undo(self, states: list[Tensor]) -> None:
        """Undoes a failed attempt at gradients, except changes to buffers and to random streams of Python and numpy."""
        self.drop_gradients()
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
        if self.train_fit.limit is None and any(isinstance(part, BATCH_NORMS) for part in self.model.modules()):
            logger.warning("batch norm normalizes over the micro-batch: from now on, figures depend on its size")

    def trained(self) -> list[nn.Parameter]:
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    def empty_gradients(self) -> None:
        """Does what `optimizer.zero_grad` does; torch's own takes 15 us, 1 % of a small step."""
        if getattr(self.optimizer.zero_grad, "__func__", None) is ZERO_GRAD:
            self.drop_gradients()
        else:  # it may accumulate gradients
            self.optimizer.zero_grad()

    def drop_gradients(self) -> None:
        for parameter in self.trained():
            parameter.grad = None

    def evaluate(self, part: DataSplit) -> dict[str, float]:
        """Returns `loss`, as a mean over the examples of `part`, and all of the task's metrics on it."""
        with contextlib.closing(examples_of(part, self.task, self.device)) as examples:
            return self.evaluate_examples(examples, self.names)

    def final_metrics(self) -> dict[str, float]:
        """Returns the task's final metrics on the validation part, for a trial that completes before its last epoch."""
        names = self.task.final_metrics
        return self.evaluate_examples(self.validation_examples, names) if names else {}

    def close(self) -> None:
        self.train_examples.close()
        self.validation_examples.close()

    @torch.no_grad()  # not `inference_mode`: a model may keep a tensor, such as a hidden state, and train on it
    def evaluate_examples(self, examples: Examples, names: Collection[str]) -> dict[str, float]:
        """Returns what is named, in the order of the task: losses as means over the examples, and metrics."""
        measures = {name: measure for name, measure in self.measures.items() if name in names}
        whole = WholePart({name: metric for name, metric in self.whole.items() if name in names}, self.strategy)
        self.evaluated.eval()
        totals = torch.zeros(len(measures), dtype=torch.float64, device=self.device)
        batch_size = max(self.batch_size, examples.chunk_length)
        rows = torch.arange(*self.strategy.part_of(len(examples)))
        is_first = examples is self.validation_examples and "loss" in measures
        for inputs, targets in examples.batches(rows, batch_size, self.evaluate_format) if len(rows) else ():
            work = partial(self.measured, list(measures.values()), inputs, targets)
            sums, batches = self.evaluate_fit(work, len(targets))
            totals += sums
            if is_first and measures:
                self.first_loss, is_first = float(sums[0]) / len(targets), False
            for batch in batches:
                whole.add(*batch)
        means = self.strategy.total(totals) / len(examples)
        values = dict(zip(measures, means.tolist(), strict=True)) | whole.values()
        values |= {name: float(each(self.model)) for name, each in self.task.model_metrics.items() if name in names}
        return {
            name: values[name] for name in ("loss", *self.task.all_metrics, *self.task.model_metrics) if name in names
        }

    def validation_loss(self) -> float:
        return self.evaluate_examples(self.validation_examples, {"loss"})["loss"]

    @torch.no_grad()
    def loss_of_first_batch(self) -> float:
        """Returns the validation loss of this process's first batch, as `evaluate_examples` notes it."""
        examples, size = self.validation_examples, max(self.batch_size, self.validation_examples.chunk_length)
        self.evaluated.eval()
        rows = torch.arange(
            *self.strategy.part_of(len(examples))
        )  # all: the numbers that a data set draws depend on them
        inputs, targets = next(iter(examples.batches(rows, size, self.evaluate_format)))
        work = partial(self.measured, [self.measures["loss"]], inputs, targets)
        sums, _ = self.evaluate_fit(work, len(targets))
        return float(sums[0]) / len(targets)

    def measured(
        self, measures: list[Measure], inputs: Tensor, targets: Tensor, size: int
    ) -> tuple[Tensor, list[tuple[Any, Tensor]]]:
        """The sum of each measure over the examples, and the outputs and targets, `size` examples at a time."""
        total, batches = torch.zeros((), dtype=torch.float64, device=inputs.device), []
        for some, labels in zip(torch.split(inputs, size), torch.split(targets, size), strict=True):
            outputs = self.precision.forward(self.evaluated, some)
            if measures:
                total = total + torch.stack([measure(outputs, labels) for measure in measures]).double() * len(labels)
            batches.append((outputs, labels))
        return total, batches

    def state_dict(self) -> dict[str, Any]:
        """The state from which `load_state_dict` continues exactly; its tensors are not copies."""
        return {
            "epoch": self.epoch,
            "max_epochs": self.spec.max_epochs,
            "model": self.model.state_dict(),
            "beside": self.beside.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "options": self.options,
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "scaler": self.precision.scaler.state_dict(),
            "gradients": [each.grad for each in self.trained()],  # not None if the optimizer accumulates them
            "generators": beside.states_of(self.own_generators),
            "attributes": beside.changes(self.attributes, beside.attributes_of(self.model)),
            "first_loss": self.first_loss,
            "config": doubts.fingerprint(self.config),
            "fits": {"train": self.train_fit.limit, "evaluate": self.evaluate_fit.limit},
        }

    def state(self, extra: Any = None) -> bytes:
        """The content of a checkpoint: the state and the plain values `extra`, which `restore` returns."""
        saved = io.BytesIO()
        torch.save({"training": self.state_dict(), "extra": extra}, saved)
        return saved.getvalue()  # no copy

    def restore(self, state: bytes) -> Any:
        """Continues from the content of a checkpoint; returns the `extra` that was saved with it.

        Sets `doubt` if the model does not validate as it did when the checkpoint was saved.
        """
        # Loaded onto the GPU, the state would double the memory of the model and the optimizer.
        try:
            saved = load_plain(io.BytesIO(state))
        except ValueError as error:
            raise ValueError(f"the checkpoint {error}") from None
        self.load_state_dict(saved["training"])
        if not self.rank:
            self.doubt = doubts.of_checkpoint(saved["training"], self.config, self.model, self.loss_of_first_batch)
        self.load_all_weights(saved["training"])  # a model may change when it is evaluated
        return saved["extra"]

    def load_weights(self, state: dict[str, Any]) -> None:
        """Restores from `state` what an evaluation of the saved model needs."""
        self.model.load_state_dict(state["model"])
        self.beside.load_state_dict(state["beside"])
        self.evaluate_fit.limit = state["fits"]["evaluate"]

    def load_all_weights(self, state: dict[str, Any]) -> None:
        """Restores from `state` all that an epoch changes, without optimizer and schedule."""
        self.load_weights(state)
        beside.set_attributes(self.model, state["attributes"])
        beside.set_states(self.own_generators, state["generators"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a copy of `state`, which must come from the same task and a model of the same shapes.

        Optimizer options that population-based training has changed in this setting keep their new values.
        """
        schedules = [] if self.schedule is None else [self.schedule]
        options: list[dict[str, Any]] = []
        # A schedule may depend on max_epochs. If a resume has changed this number, the schedule continues as if the
        # search had had the new number from the start.
        if schedules and state["max_epochs"] != self.spec.max_epochs:
            names = {"lr"} | self.scheduled()  # it may set more than the rate: OneCycleLR also moves the momentum
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch warns that the optimizer has not stepped yet
                for _ in range(state["epoch"]):
                    schedules[0].step()
                    names |= self.scheduled()
            options = [{name: group[name] for name in names & group.keys()} for group in self.optimizer.param_groups]
            schedules = []
        self.epoch = state["epoch"]
        self.load_all_weights(state)
        for parameter, gradient in zip(self.trained(), state["gradients"], strict=False):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        # A copy, because `load_state_dict` keeps references to the tensors of a state that it need not convert.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for schedule in schedules:
            schedule.load_state_dict(copy.deepcopy(state["schedule"]))
        keep_changes([self.optimizer], schedules, state["options"], self.options)
        for group, of_schedule in zip(self.optimizer.param_groups, options, strict=False):
            group.update(of_schedule)
        if state["scaler"]:
            self.precision.scaler.load_state_dict(state["scaler"])
        self.train_fit.limit = state["fits"]["train"]


def small_convolutions(model: nn.Module, sample: Tensor, batch_size: int) -> bool:
    """Whether a CPU computes a model's convolutions faster without oneDNN, whose fixed cost per call is larger.

    A step's time without oneDNN, relative to that with it (seven small networks, batch sizes 1 to 8, one thread): 0.50
    to 1.04 if the largest convolution has at most 1.4 million multiply-adds per batch; 1.03 to 1.94 from 1.8 million.
    """
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    convolutions = [part for part in model.modules() if isinstance(part, kinds)]
    if batch_size > 8 or not convolutions:
        return False
    work = [0]

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        work.append(output[0].numel() * module.weight[0].numel())  # type: ignore[index]

    hooks = [part.register_forward_hook(note) for part in convolutions]
    with torch.no_grad():
        model.eval()(sample)
    for hook in hooks:
        hook.remove()
    return 0 < batch_size * max(work) <= SMALL_CONVOLUTION


@contextlib.contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Switches oneDNN off in the `with` block unless `enabled`; restores the switch on exit."""
    before = bool(torch.backends.mkldnn.enabled)
    torch.backends.mkldnn.enabled = before and enabled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before  # type: ignore[assignment]
