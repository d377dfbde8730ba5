"""Space and Task: what a user writes in one file of `search_spaces/`, checked when built."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tuner.errors import RequestError, nearest
from tuner.spec import domains

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from tuner.training.data import Splits

Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The functions from which a trial gets its training loop, checkpoints, exact resume and figures.

    Args:
        data: `data(data_dir) -> Splits`; `data_dir` is a Path, or None when the user named none.
        model: `model(config) -> nn.Module`, single-device and on the CPU; the service moves it.
        optimizer: `optimizer(parameters, config) -> Optimizer`.
        loss: `loss(outputs, targets) -> Tensor` (a mean over the batch); cross-entropy when None.
        training_loss: `training_loss(outputs, targets, config) -> Tensor` (a mean over the batch), minimised in
            the place of `loss` where that depends on the setting (label smoothing, say); `loss` is still what
            is measured on the validation part, so that settings can be compared by it.
        metrics: name -> `metric(outputs, targets) -> Tensor`, a mean over the batch; reported on the
            validation part beside `loss`.
        schedule: `schedule(optimizer, config, max_epochs) -> LRScheduler`, stepped once an epoch.
        prepare: `prepare(inputs) -> Tensor`, from stored inputs (uint8 images, say) to what the model takes;
            called in bulk on the trial's device, deterministic, the same for training and evaluation.
        augment: `augment(inputs) -> Tensor` on a prepared training batch, on the trial's device.
        batch_size: used where the space does not search `batch_size`.
        validation_fraction: the part of `train` held out where `data` returns no validation part, in (0, 1).
        channels_last: the model takes 4-D inputs and never calls `view` on what a convolution returns, so the
            faster memory format may be used.
        compile: compile the network for training by torch.compile (a C++ compiler is needed on a CPU). The figures
            may then differ in their last digits from one process to the next.
        stages: `stages(model) -> [module, ...]`, for the strategies model and pipeline: the model's own layers in
            parts, each a module that takes what the last one returned; a model that is an nn.Sequential needs none.
        split_size: examples of a micro-batch of the strategy pipeline, where the space does not search `split_size`.
    """

    data: Callable[[Path | None], Splits]
    model: Callable[[Config], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter], Config], torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    training_loss: Callable[[Tensor, Tensor, Config], Tensor] | None = None
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)
    schedule: Callable[[torch.optim.Optimizer, Config, int], Any] | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    batch_size: int = 32
    validation_fraction: float = 0.2
    channels_last: bool = False
    compile: bool = False
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    split_size: int = 20


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


@dataclass(frozen=True)
class Found:
    """A space and where it came from: the name it was asked for by, its file and that file's sha256."""

    space: Space
    name: str
    path: Path
    sha256: str
    module: str


def list_spaces() -> dict[str, str]:
    """Name -> first line of the docstring, of every file in `search_spaces/`; nothing is imported."""
    files = sorted(path for path in _folder().glob("*.py") if not path.name.startswith("_"))
    return {path.stem: _first_line(path) for path in files}


def is_path(name: str) -> bool:
    """Whether a space is asked for by its file, not by a name in `search_spaces/` or a module's."""
    return name.endswith(".py") or "/" in name


def locate_space(name: str) -> tuple[Path | str, str]:
    """The file or the module that a space's name stands for, and the attribute asked for; nothing is imported.

    Raises:
        RequestError: no such file, or an unknown name (with the nearest).
    """
    module_name, _, attribute = name.partition(":")
    if is_path(name):
        if not Path(name).is_file():
            what = "is a folder; give the .py file" if Path(name).is_dir() else "no such file"
            raise RequestError(f"--space {name}: {what}")
        return Path(name), ""
    if "." in module_name:
        return module_name, attribute
    known = list_spaces()
    if module_name in known:
        return f"search_spaces.{module_name}", attribute
    raise RequestError(
        f"no space named {name!r}{nearest(name, known)}; known: {', '.join(known)}; "
        f"or give a path to a .py file or package.module:attribute"
    )


def file_of(name: str) -> Path | None:
    """The file that `find_space` runs for this name; nothing is imported. None where there is none."""
    module_name = name.partition(":")[0]
    if is_path(name):
        path = Path(name).resolve()
    elif "." not in module_name:
        path = _folder() / f"{module_name}.py"
    else:
        path = _origin(module_name.split("."))
    return path if path.is_file() else None


def mentions_torch(name: str) -> bool:
    """Guess from the text of the space's file whether its trials import torch; True where no file is found.

    A wrong guess costs seconds at the start and nothing else: workers import torch ahead without need, or with their
    first trial. RequestError for a file that is missing, or an unknown name.
    """
    locate_space(name)
    path = file_of(name)
    return path is None or b"torch" in (text := path.read_bytes()) or b"Task" in text


def find_space(name: str) -> Found:
    """Imports a space: a name in `search_spaces/`, a path to a .py file, or `package.module[:attribute]`.

    Raises:
        RequestError: unknown name (with the nearest), a file that does not import (its own error, file and line),
            or a module without a Space.
    """
    place, attribute = locate_space(name)
    module = _import_file(place.resolve()) if isinstance(place, Path) else _import_module(place, name)
    space = getattr(module, attribute or "space", None)
    if not isinstance(space, Space):
        what = f"{attribute or 'space'} = Space(...)"
        raise RequestError(f"--space {name}: {module.__file__} has no {what}; it needs one at module level")
    path = Path(str(module.__file__))
    return Found(space, name, path, hashlib.sha256(path.read_bytes()).hexdigest(), module.__name__)


def _takes_config(train: Any) -> bool:
    try:
        inspect.signature(train).bind({})
        return True
    except TypeError:
        return False
    except ValueError:
        return True  # a built-in function that does not say


def _folder() -> Path:
    return Path(__file__).parent.parent / "search_spaces"


def _first_line(path: Path) -> str:
    try:
        return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
    except SyntaxError as error:
        return f"(does not parse: {error.msg}, line {error.lineno})"
    except ValueError as error:  # a null byte, in Python before 3.11.4
        return f"(does not parse: {error})"


def _origin(parts: list[str]) -> Path:
    """A module's file. `importlib.util.find_spec` would import the packages that it is in."""
    places, origin = None, ""
    for end, part in enumerate(parts, 1):
        name = ".".join(parts[:end])
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        try:
            spec = next(filter(None, (finder.find_spec(name, places) for finder in finders)), None)
            below = list(spec.submodule_search_locations or ()) if spec else []
        except KeyError:  # a folder without __init__.py in another asks for that one's module, which is not imported
            spec, below = None, [str(place) for one in places or sys.path if (place := Path(one, part)).is_dir()]
        places, origin = below, (spec and spec.origin) or ""
    return Path(origin)


def _import_module(module_name: str, asked: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise RequestError(f"--space {asked}: {_where(error)}") from error


def _import_file(path: Path) -> ModuleType:
    # The file's content is in the name, so that two files of one name can live in one process (tests, the service).
    source = path.read_bytes()
    digest = hashlib.sha256(source).hexdigest()[:8]
    name = f"tuner_space_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not by the loader, which may run a file of __pycache__ beside it that has other code.
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RequestError(f"--space {path}: {_where(error)}") from error
    return module


def _where(error: BaseException) -> str:
    """The error with the file and line where the space raised it (the innermost frame outside this package)."""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})" if error.lineno else ""
        return f"does not parse: {error.msg}{place}"
    if isinstance(error, ValueError) and "null bytes" in str(error):  # no SyntaxError before Python 3.11.4
        return f"does not parse: {error}"
    ours = str(Path(__file__).parent)
    skip = ("<", ours, importlib.__file__.rpartition("/")[0])
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(skip) and "site-packages" not in f.filename
    ]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    said = " ".join(str(error).split())
    return f"does not import: {type(error).__name__}: {said}{place}"
