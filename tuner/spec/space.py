"""Space: the searched parameters, what a trial trains, and the metric; checked when it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tuner.errors import RequestError, nearest
from tuner.errors.one_line import in_one_line
from tuner.errors.users_code import place_of
from tuner.spec import domains, parameters
from tuner.spec.command import ADDED, Command, command_of
from tuner.spec.constraints import written
from tuner.spec.experiment import Options, with_fields
from tuner.spec.metrics import is_number
from tuner.spec.script_text import MOST_REPORTS
from tuner.training.task import Task, callable_with

# Field -> the classes of its values, and what an error text asks for. The other fields have checks of their own.
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "task": ((Task, type(None)), "a Task, such as Task(data=..., model=..., optimizer=...)"),
    "metric": ((str, Sequence), 'the name of a metric, such as "loss", or several names'),
    "constraints": ((Mapping,), 'a dict, metric -> limit, such as {"size_mb": "<= 10"}'),
    "prune_by": ((str,), 'the name of a metric that every report has, such as "loss"'),
    "points": ((Sequence,), 'a list of settings, such as [{"lr": 0.01}]'),
    "prior": ((Mapping,), 'a dict, parameter -> guessed value, such as {"lr": 1e-3}'),
    "stop": ((Mapping,), 'a dict, metric -> value, such as {"accuracy": 0.98}'),
    "mutable": ((Sequence, Mapping), 'a list of parameters, such as ["lr"], or a dict, name -> domain'),
    "callbacks": ((Sequence,), "a list of tune.Callback objects"),
    "command": ((str, Sequence), 'a text, such as "python train.py --lr {lr}", or a list of words'),
    "report": ((str,), 'a regular expression, such as "loss=(?P<loss>[0-9.e+-]+)"'),
    "words": ((str,), "a text, such as '--{key}={value}'"),
    "unchecked": ((Sequence,), 'a list of parameters, such as ["num_workers"]'),
    "seeded": ((bool,), "True or False"),
    "length": ((str,), 'the name of an option, constant or parameter, such as "epochs"'),
}


@dataclass(frozen=True, kw_only=True)
class Space:
    r"""The searched parameters, what a trial trains, and the metric. A space file assigns it to `space`, at top level.

    Args:
        params: name -> Ray domain (`tune.choice`, `tune.loguniform`, ...) or a constant, which every trial gets: a
            number, a text, True, False or None. Dictionaries may be nested. A `tune.choice` of dictionaries that have
            domains is a conditional parameter: a trial gets the chosen dictionary.
        task: the training functions. Give one of `task`, `train` and `command`.
        train: a function or class that Ray Tune accepts, such as `train(config)` that calls `ray.tune.report`. A
            function without an argument gets its parameters from argparse or `wandb.config`.
        command: a program with its arguments, as text or as words; trials run it without a shell. `{name}` stands for
            the value of the parameter `name`, `{{name}}` for a literal `{name}`. `{max_epochs}`, `{seed}`, `{cpus}` and
            `{gpus}` are the trial's, `{checkpoint}` is its folder of checkpoints, and `{config}` a JSON file of its
            parameters. Its reports are lines of its output: JSON objects that have the metric; or those of a Trainer,
            `tune.report` or `tuner_trial.report` in one of its processes.
        report: a regular expression for a command's other reports, with a named group for each metric, such as
            r"val_loss=(?P<val_loss>[^\s,]+)".
        words: the template for a parameter that is not named in braces in `command`.
        metric: the reported metric to optimize, or several, such as ("accuracy", "latency_ms").
        mode: "min" or "max": whether to minimize or maximize the metric; with several metrics, one mode for each.
        constraints: metric -> the limit that the answer must keep, such as {"size_mb": "<= 10"}. With "<= 10 at start",
            the first report that breaks it ends the trial.
        prune_by: the reported metric that the scheduler compares instead of `metric`, which may then come rarely, or
            once at a trial's end. Every report must have `prune_by`, except one that has `metric` alone after a trial's
            last epoch. The answer is still the best `metric`.
        prune_mode: "min" or "max": which values of `prune_by` are better.
        max_epochs: maximum epochs (reports) per trial; ASHA's `max_t`. By default 10, or 1000 for a `command` without
            `{max_epochs}`. The report of this number ends a trial; its program is then stopped, unless it got this
            number by `{max_epochs}` or `length` and so ends by itself.
        length: the name by which `train` gets `max_epochs`, such as "epochs": `config["epochs"]`, or in a script the
            option or constant of this name. A whole number under this name in `params` is the default of `max_epochs`.
        points: settings to try first; the parameters that a point leaves out are drawn at random.
        prior: parameter -> a guess of a good value. The guess runs after the points, and random and forest draw a
            share of their random settings around it.
        stop: metric -> value. A trial ends when a metric is at or above its value. If `mode` is "min", the searched
            metric must be at or below its value; likewise `prune_by`, if `prune_mode` is "min".
        num_samples, searcher, scheduler, grace_period, reduction_factor: defaults of the search; command-line options
            take precedence.
        strategy, workers_per_trial: how to train a trial of the task; command-line options take precedence.
        mutable: parameters that pbt may change while a trial trains, such as ["lr"], or a dict from these parameters to
            the domains of their changed values. With a dict, `params` may have their first values as constants.
        unchecked: parameters that need not reach the training under their own names, such as ["num_workers"]. For the
            others, the search ends if two trials with different values train with the same.
        callbacks: Ray Tune's callbacks (`tune.Callback`) of the search.
        notes: texts that a new search prints before its first trial.
        seeded: whether `train` gets the trial's own seed as `config["seed"]`, for all that it draws at random. So
            `--confirm` can train a setting again with other seeds. A `task` is always seeded.

    Raises:
        ValueError: a parameter or field is wrong; the text says which, and what is allowed.
    """

    params: Mapping[str, Any]
    task: Task | None = None
    train: Callable[[dict[str, Any]], Any] | None = None
    command: str | Sequence[str] = ""
    report: str = ""
    words: str = ADDED
    metric: str | Sequence[str] = "loss"
    mode: str | Sequence[str] = "min"
    constraints: Mapping[str, Any] = field(default_factory=dict)
    prune_by: str = ""
    prune_mode: str = "min"
    max_epochs: int | None = None
    num_samples: int = 10
    searcher: str = "auto"
    scheduler: str = "auto"
    grace_period: int | Literal["auto"] = "auto"
    reduction_factor: float | Literal["auto"] = "auto"
    strategy: str = "single"
    workers_per_trial: int = 1
    mutable: Sequence[str] | Mapping[str, Any] = ()
    points: Sequence[Mapping[str, Any]] = ()
    prior: Mapping[str, Any] = field(default_factory=dict)
    stop: Mapping[str, float] = field(default_factory=dict)
    callbacks: Sequence[Any] = ()
    unchecked: Sequence[str] = ()
    notes: Sequence[str] = ()
    seeded: bool = False
    length: str = ""

    @in_one_line()
    def __post_init__(self) -> None:
        for name, (kinds, allowed) in KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, str) and str not in kinds):
                raise ValueError(f"{name}={value!r}{place_of(value)}: must be {allowed}")
        trained = [f"{name}=" for name in ("task", "train", "command") if getattr(self, name) not in (None, "")]
        if len(trained) != 1:
            has = " and ".join(trained) or "none of them"
            raise ValueError(f"Space has {has}; give exactly one of task=, train= and command=")
        if (self.report or self.words != ADDED) and not (self.command or isinstance(self.train, Command)):
            raise ValueError("report= and words= are for command=; leave them out")
        if not isinstance(self.params, Mapping):
            raise ValueError(f"params is a {type(self.params).__name__}: must be a dict, name -> search domain")
        if self.length:
            self._declare_length(is_given="train=" in trained)
        has_own_length = False
        if "command=" in trained:
            command = command_of(self.command, self.report, self.words)
            named = [each for each in ("max_epochs", "seed") if command.uses(each) and each not in self.params]
            has_own_length = "max_epochs" not in named
            object.__setattr__(self, "train", command)
            object.__setattr__(self, "length", "" if has_own_length else "max_epochs")
            object.__setattr__(self, "seeded", self.seeded or "seed" in named)
            object.__setattr__(self, "command", "")  # `dataclasses.replace` would give both
        if self.max_epochs is None:
            object.__setattr__(self, "max_epochs", MOST_REPORTS if has_own_length else Options.max_epochs)
        if not self.prune_by and isinstance(self.metric, str) and (own := getattr(self.train, "prune_by", "")):
            object.__setattr__(self, "prune_by", own)  # what an Optuna objective reports for the pruner
            object.__setattr__(self, "prune_mode", self.mode)
        if self.seeded and (self.task or "seed" in self.params):
            why = "a Task is always seeded" if self.task else "params has a parameter of this name"
            raise ValueError(f'seeded=True adds config["seed"] for train=, but {why}; leave out one of the two')
        if not self.params:
            raise ValueError("Space has no params: there is nothing to search")
        if hasattr(self.train, "state_dict") and not isinstance(self.train, type):
            raise ValueError("train= is a module: give a function of the config that trains it, or a Task(model=...)")
        is_function = self.train is None or isinstance(self.train, Command) or takes_config(self.train)
        if not (is_function or callable_with(self.train)):
            given = "the function itself, not the result of a call" if not callable(self.train) else "such a function"
            raise ValueError(f"train={self.train!r}: must be a function of one argument, the config; give {given}")
        if isinstance(self.train, type) and not defines(self.train, "step"):
            name = self.train.__name__
            raise ValueError(f"train={name}: the class has no step(self), which trains one epoch; add it")
        parameters.check(self.params)
        if isinstance(self.train, Command):
            self.train.check_names(self.params)
        try:
            self.options  # noqa: B018  (raises for a wrong value)
        except RequestError as error:
            raise ValueError(with_fields(str(error))) from None
        for name in self.mutable:
            if name not in self.params or parameters.is_nested(self.params[name]):
                known = ", ".join(name for name, value in self.params.items() if not parameters.is_nested(value))
                raise ValueError(f"mutable has {name!r}, which is nested or not in params; give one of {known}")
        parameters.check(self.mutations, of="mutable")
        check_unchecked(self.unchecked, self.searched)
        if not self.searched:
            raise ValueError("params has only constants: nothing to search; give one a domain such as tune.uniform")
        for name, point in (*(("points", point) for point in self.points), ("prior", self.prior)):
            try:
                parameters.place(self.declared, point)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    def _declare_length(self, *, is_given: bool) -> None:
        """Takes the parameter `length` out of params; its value becomes `max_epochs`."""
        if not is_given:
            raise ValueError(
                f"length={self.length!r} is for train=: a Task trains max_epochs epochs, and a command gets the number "
                f"where its words have {{max_epochs}}; leave it out"
            )
        if self.length not in self.params:
            return
        most, number = self.max_epochs, self.params[self.length]
        if type(number) is not int:
            raise ValueError(
                f"params has {self.length}={number!r}, but length={self.length!r} names the number of epochs, which is "
                f"the same in all trials: give a whole number, or leave one of the two out"
            )
        if most not in (None, number):
            raise ValueError(f"max_epochs={most!r}, but params has {self.length}={number}; leave one of the two out")
        object.__setattr__(self, "params", {n: each for n, each in self.params.items() if n != self.length})
        object.__setattr__(self, "max_epochs", number)

    @property
    def names(self) -> list[str]:
        """The names of all that a trial gets: its parameters and constants, its length and its seed."""
        return [*self.params, *filter(None, [self.length]), *["seed"] * self.seeded]

    @cached_property
    def options(self) -> Options:
        """The options of a search that the fields of this space declare."""
        goals = ("metric", "mode", "prune_by", "prune_mode")
        names = (
            "num_samples",
            "searcher",
            "scheduler",
            "max_epochs",
            "reduction_factor",
            *goals,
            "strategy",
            "workers_per_trial",
        )
        epochs, grace = self.max_epochs, self.grace_period
        return Options(
            **{name: getattr(self, name) for name in names},
            grace_period=min(grace, epochs) if type(grace) is type(epochs) is int else grace,
            point=tuple(domains.words(point) for point in self.points),
            prior=domains.words(self.prior),
            stop=domains.metric_words(self.stop),
            constraint=written(self.constraints),
            unchecked=tuple(self.unchecked),
        )

    @cached_property
    def declared(self) -> dict[str, Any]:
        """The params, in which each constant that pbt may change is replaced by a choice with that one value."""
        from ray import tune

        starts = {name: self.params[name] for name in self.mutable if domains.is_constant(self.params[name])}
        for name, value in starts.items():
            if is_number(value) and domains.kind(self.mutations[name]) in ("uniform", "loguniform", "normal"):
                starts[name] = float(value)  # Ray would round all values that come from an integer
        return {**self.params, **{name: tune.choice([value]) for name, value in starts.items()}}

    @cached_property
    def searched(self) -> dict[str, Any]:
        """The declared parameters without constants."""
        return parameters.searched(self.declared)

    @cached_property
    def encoded(self) -> dict[str, Any]:
        """The searched parameters as a searcher gets them, with all branches of conditional parameters."""
        return parameters.encode(self.declared)

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The constants that every trial gets, without those that pbt may change."""
        return parameters.constants(self.declared)

    @cached_property
    def mutations(self) -> dict[str, Any]:
        return dict(self.mutable if isinstance(self.mutable, Mapping) else {n: self.params[n] for n in self.mutable})

    def reported(self) -> set[str] | None:
        """The metrics of every report of a task; None for `train`, whose metrics are known only when a trial runs."""
        return {"loss", "train_loss", *self.task.metrics, *self.task.model_metrics} if self.task else None


def check_unchecked(names: Sequence[str], searched: Mapping[str, Any], of: str = "unchecked") -> None:
    """Raises ValueError for a name that is no searched parameter; nested ones have a `/` in their names."""
    known = [name for name, _ in domains.leaves(searched)]
    for name in names:
        if name not in known:
            raise ValueError(
                f"{of} {name!r}: is no searched parameter{nearest(name, known)}; they are {', '.join(known)}"
            )


def defines(train: type, method: str) -> bool:
    """Whether a class has or inherits a method; ignores that of `tune.Trainable`, which only raises an error."""
    owner = next((each for each in train.__mro__ if method in vars(each)), None)
    return owner is not None and owner.__module__ != "ray.tune.trainable.trainable"


def takes_config(train: Any) -> bool:
    """Whether a function takes the config; a function without arguments gets it from its parser or from W&B."""
    return callable_with(train, {})
