"""Reads `best/`, a search's answer: `load_best` gives a task's trained model, or a function's checkpoint and files."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tuner.core.events import Report
from tuner.errors import RequestError, blamed, say
from tuner.errors.gate import fingerprint
from tuner.record.checkpoints import load_state
from tuner.record.format import FIELD, JOURNAL, check_format
from tuner.record.lines import from_words, strict
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.record.storage.checksums import changed
from tuner.record.storage.files import json_in
from tuner.record.storage.trial_files import FILES, Written
from tuner.record.texts import command
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.spec.space_objects import main_space, space_of
from tuner.spec.spaces import LoadedSpace, find_space, is_in_main
from tuner.training.task import whole_config
from tuner.tuning.resume.trust import code_of, refuse_data_folder, results_of

if TYPE_CHECKING:
    from ray import tune

    from tuner.training.task import Task

CONFIG, METRICS, MODEL, CHECKPOINT, README = "config.json", "metrics.json", "model.pt", "checkpoint", "README.md"
CHECKSUMS = "checksums"  # this field of best/config.json has a size and CRC-32 for each file of a function's trial
WRITTEN = "written"  # this field of best/config.json lists what else tuner has written beside it
FRONT = "front"  # the folder in `best/` with the other points of the Pareto front
# Field of best/config.json -> the field of Experiment with the same meaning; Experiment checks the values.
OPTIONS = {name: name for name in ("space", "max_epochs", "seed", "precision", "on_oom", "strategy", "data_dir")}
OPTIONS["workers"] = "workers_per_trial"


@dataclass(frozen=True)
class BestModel:
    """The best model of a search.

    Attributes:
        model: the model with its weights, on the CPU and in evaluation mode. None for a `Space(train=...)`.
        prepare: turns stored inputs into the model's inputs, as in the search: `best.model(best.prepare(inputs))`.
        config: the setting, with the constants of the space and of the data.
        metrics: the content of best/metrics.json: `epoch`, `validation`, `test` and perhaps `notice`.
        checkpoint, files: the folders `best/checkpoint` and `best/files` of a `Space(train=...)`; None if missing.
    """

    model: Any = field(repr=False)
    prepare: Callable[[Any], Any] = field(repr=False)
    config: dict[str, Any]
    metrics: dict[str, Any]
    checkpoint: Path | None = None
    files: Path | None = None


@dataclass(frozen=True)
class BestTrial:
    """The best trial so far: its config, its metrics at its best `epoch`, and its `test` metrics (None if not tested).

    `checkpoint` is a Ray Checkpoint of that epoch; `files` is the folder of the files that the trial wrote by relative
    paths. Each is None for a Task, if the trial saved none, and until the search has finished.
    """

    trial: str
    epoch: int
    config: dict[str, Any]
    metrics: dict[str, Any]
    test: dict[str, Any] | None = None
    broken: str = ""  # which constraints it breaks, if no trial keeps them all; empty if it keeps them
    _best: Path | None = field(default=None, repr=False)  # the folder best/; None if best/ has another trial or epoch

    @property
    def checkpoint(self) -> tune.Checkpoint | None:
        from ray import tune

        saved = self._folder(CHECKPOINT)
        return tune.Checkpoint.from_directory(saved) if saved else None

    @property
    def files(self) -> Path | None:
        return self._folder(FILES)

    def _folder(self, name: str) -> Path | None:
        if self._best is None or not (self._best / name).is_dir():
            return None
        _check_copies(self._best, checksums_in(self._best), name)
        return self._best / name


def best_trial(record: ExperimentRecord, trial: TrialRecord, report: Report) -> BestTrial:
    best, saved = held_in(record.experiment.folder / "best", trial, report)
    test, broken = saved["test"] if saved else None, trial.broken(record.experiment.aim, report)
    return BestTrial(trial.id, report.epoch, record.config_of(trial), dict(report.metrics), test, broken, best)


def held_in(best: Path, trial: TrialRecord, report: Report) -> tuple[Path | None, dict[str, Any] | None]:
    """Returns the folder that has this trial and epoch, `best/` or one in `best/front/`, and its metrics.json."""
    for folder in (best, *sorted((best / FRONT).glob("*"))):
        if saved := metrics_in(folder, report, trial=trial.id, epoch=report.epoch):
            return folder, saved
    return None, None


def load_best(
    folder: str | PathLike[str],
    *,
    space: Space | str | PathLike[str] | ModuleType | None = None,
    trust: bool = False,
    point: int = 0,
) -> BestModel:
    """Loads the best model of an experiment, from its folder or from the folder's `best/`.

    With several metrics, it is the knee of the Pareto front; `point` 1, 2, ... are the others, in `best/front/`.

    The code comes from `space` (a Space, a name, a path to a .py file or a module), or else from the space that the
    folder names: a space in `search_spaces/`, an installed module, or a file that has not changed since the search.
    With `trust`, code runs even if it has changed or lies among the results, or if the folder belongs to another user.

    Raises a RequestError if there is no best model yet, it is damaged or does not fit the space, or code must not run.
    """
    whole = Path(folder)
    best = whole / "best" if (whole / "best").is_dir() else whole
    if point:
        number = len(list((best / FRONT).glob("*")))
        if not (isinstance(point, int) and 0 <= point <= number):
            raise RequestError(f"point {point!r}: {best / FRONT} has {number}; give 0 (the knee, in best/) to {number}")
        best = point_in(best, point)
    if not (best / CONFIG).exists():
        raise RequestError(f"{whole} has no best/{CONFIG}: the search has no answer yet, or this is no experiment")
    config = load_config(best / CONFIG)
    with blamed(str(best / METRICS)):
        metrics = dict(json_in(best, METRICS))
    if not (best / MODEL).exists():
        checkpoint, files = (best / name if (best / name).is_dir() else None for name in (CHECKPOINT, FILES))
        if not (checkpoint or files):
            search, trial = _search_of(best), str(config["trial"])
            had = config.get("checkpoint") or (search and Written.read(search / "ray" / trial).files)
            why = "its best trial saved no checkpoint and wrote no file by a relative path"
            why = f"what its best trial {trial} saved is gone" if had else why
            has_no = f"{best} has no {MODEL}, {CHECKPOINT}/ or {FILES}/"
            raise RequestError(f"{has_no}: the search has not finished (--resume it), or {why}")
        try:
            _check_copies(best, config.get(CHECKSUMS) or {})
        except RequestError:
            if load_config(best / CONFIG) == config:
                raise
            return load_best(folder, point=point)  # a search has just replaced best/
        return BestModel(None, partial(_prepared, None), config["config"], metrics, checkpoint, files)
    task = (space_of(space) if space is not None else _recorded(best, config, trust)).space.task
    if task is None:
        raise RequestError(
            f"{best} has the weights of a Space(task=...), but the space is a Space(train=...); give that of the search"
        )
    constants = config.get("data_constants")
    if not isinstance(constants, dict):  # JSON cannot hold these constants: read them from the data
        from tuner.training.sources import splits_of

        if not trust:
            give = "give trust=True"
            refuse_data_folder(best / CONFIG, config.get("data_dir") or "", results_of(best), give)
        constants = splits_of(task, config.get("data_dir") or "", config["seed"]).constants
    setting = whole_config(config["config"], data_constants=constants)
    model = _weighted(task, setting, best)
    if load_config(best / CONFIG) != config:  # a search has just replaced best/; `model` may be the new one
        return load_best(folder, space=space, trust=trust, point=point)
    return BestModel(model, partial(_prepared, task.prepare), setting, metrics)


def _check_copies(best: Path, recorded: dict[str, str], name: str = "") -> None:
    """Raises a RequestError if a recorded file below `best/`, or only below its folder `name`, has changed."""
    if why := changed(best, {path: was for path, was in recorded.items() if path.startswith(name)}):
        raise RequestError(
            f"{why}; restore a copy of it, or resume the search: it copies the trial's own files if it still has them"
        )


def checksums_in(best: Path) -> dict[str, str]:
    """Returns the checksums in best/config.json; empty if it has none or is damaged."""
    with contextlib.suppress(RequestError):
        return dict(load_config(best / CONFIG).get(CHECKSUMS) or {})
    return {}


def written_in(best: Path) -> set[str]:
    """Returns the paths that tuner has written to `best/`, a whole folder's with a `/` at its end; empty if unknown."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        config = dict(json_in(best, CONFIG))
        return {str(path) for path in [*(config.get(WRITTEN) or ()), *(config.get(CHECKSUMS) or {})]}
    return set()


def point_in(best: Path, point: int) -> Path:
    """Returns the folder of a point of the Pareto front; its knee, point 0, is in `best/` itself."""
    return best / FRONT / f"{point:02d}" if point else best


def is_loadable(best: Path) -> bool:
    """Whether `best/` has a model or a checkpoint; `load_best` also loads a `best/` that has only `files/`."""
    return (best / MODEL).exists() or (best / CHECKPOINT).is_dir()


def load_config(path: Path) -> dict[str, Any]:
    """Reads a best/config.json; raises a RequestError if it does not exist, is damaged or has an invalid value."""
    wanted = "give the best/config.json of an experiment"
    if path.is_dir():
        raise RequestError(f"{path} is a folder; give {path / 'best' / 'config.json'}, or add --trial ID")
    if not path.exists():
        raise RequestError(f"{path}: no such file {path.absolute()}; {wanted}")
    try:
        whole = path.resolve()  # the file may be a link, because the user has named it
        config = dict(json_in(whole.parent, whole.name))
        from_words(config)
    except (OSError, ValueError, TypeError) as error:
        raise RequestError(f"{path}: {error}; {wanted}") from None
    check_format(config.get(FIELD), path)
    try:
        if missing := {*OPTIONS, "cpus", "gpus", "config", "trial", "epoch", "space_sha256"} - set(config):
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        resources = {f"{name}_per_trial": config[name] for name in ("cpus", "gpus")}
        Experiment(**resources, **{field: config[name] for name, field in OPTIONS.items()})
        if not isinstance(config["config"], dict) or not isinstance(config["space"], str):
            raise ValueError("the field `config` must be an object, and the field `space` a text")
        sums = config.get(CHECKSUMS, {})
        if not isinstance(sums, dict) or not all(isinstance(each, str) for each in sums.values()):
            raise ValueError(f"the field `{CHECKSUMS}` must be an object of texts")
        if type(config["epoch"]) is not int or not str(config["trial"]).isdecimal():
            raise ValueError("the field `epoch` must be an integer, and the field `trial` a number")
    except (RequestError, ValueError) as error:
        raise RequestError(f"{path}: {error}; {wanted}") from None
    return config


def metrics_in(best: Path, report: Report, **fields: Any) -> dict[str, Any] | None:
    """Returns metrics.json if `best/` is of this report and its config has these `fields`; else None.

    A damaged metrics.json has no `test`; the other files still count, as they may be the last copy of the model.
    """
    expected = {"validation": json.loads(json.dumps(strict(dict(report.metrics)))), "test": None}
    with contextlib.suppress(OSError, ValueError, TypeError):
        config, metrics = dict(json_in(best, CONFIG)), expected
        from_words(config)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = dict(json_in(best, METRICS))
            if isinstance(found["test"], (dict, type(None))):
                metrics = {name: found[name] for name in expected}
        # The metrics are compared too, because a download from an object store may have files of two answers.
        is_same = metrics["validation"] == expected["validation"]
        return (
            metrics if is_same and all(fingerprint(config.get(n)) == fingerprint(fields[n]) for n in fields) else None
        )
    return None


def readme(folder: Path, space: str, best: Path, point: int = 0) -> str:
    """Returns the text of best/README.md: how to load the files in `best`, the answer of the experiment `folder`."""
    given = (", space=space" if is_in_main(space) else "") + (f", point={point}" if point else "")
    uses = {
        MODEL: "scores = best.model(best.prepare(inputs))",
        CHECKPOINT: "print(best.checkpoint)  # what the trial reported at its best epoch",
        FILES: "print(best.files)  # what the trial wrote by relative paths, as it was when the trial ended",
    }
    what = f"Point {point} of the Pareto front" if point else "The best trial"
    text = f"# {what} of {folder.name}\n\n`{CONFIG}` has its parameters."
    if loads := [line for name, line in uses.items() if (best / name).exists()]:
        load = f"best = load_best({str(folder.absolute())!r}{given})  # the path to the experiment"
        code = "\n".join(["from tuner import load_best\n", load, "print(best.config, best.metrics)", *loads])
        text += f" This loads the rest:\n\n```python\n{code}\n```"
    if uses[FILES] in loads:
        text += "\n\nFiles that it overwrote after its best epoch have the later content."
    return f"{text}\n"


def _prepared(prepare: Callable[[Any], Any] | None, inputs: Any) -> Any:
    import torch

    tensor = torch.as_tensor(inputs)
    return prepare(tensor) if prepare else tensor


def _recorded(best: Path, config: dict[str, Any], trust: bool) -> LoadedSpace:
    """Loads the space that best/config.json names, if its code may run (`tuner.tuning.resume.trust`)."""
    name, sha256 = config["space"], config.get("space_sha256")
    if is_in_main(name):
        attribute = name.partition(":")[2]
        live = main_space(attribute)
        if live and sha256 and live.sha256 == sha256:
            return live
        file = config.get("space_file")
        if not (isinstance(file, str) and file.endswith(".py") and attribute.isidentifier()):
            raise RequestError(f"{best}: its space was defined in a notebook; give it: load_best(..., space=space)")
        name = f"{file}:{attribute}"
    name, code = code_of(best, (CONFIG,), name, sha256, trusted=trust)
    say(*code)
    return find_space(name)


def _search_of(best: Path) -> Path | None:
    """Returns the experiment's folder of `best/` or of a folder in `best/front/`; None if it lies elsewhere alone."""
    return next((each for each in best.parents[:3] if (each / JOURNAL).is_file()), None)


def _weighted(task: Task, setting: dict[str, Any], best: Path) -> Any:
    """Builds the model and loads its weights; does not advance torch's random stream on the CPU."""
    import torch

    advice = f"restore a copy of it, or train the setting again: {command('train', shlex.quote(str(best / CONFIG)))}"
    if search := _search_of(best):
        resume = command("run", "--resume", shlex.quote(str(search)))
        advice = f"this writes it again if the trial's checkpoint is whole: {resume}"
    weights = load_state(best, MODEL, advice)
    with torch.random.fork_rng(devices=[]):
        model = task.model(setting)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())[:300]
        raise RequestError(
            f"{best / MODEL} does not fit the space's model ({why}); undo the changes to the space since the search"
        ) from None
    return model.eval()
