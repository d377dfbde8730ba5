"""Runs a Lightning `Trainer` as a trial of a search.

from tuner.integrations.lightning import TunerCallback

trainer = L.Trainer(..., callbacks=[TunerCallback()])
trainer.fit(model, data, ckpt_path=TunerCallback.checkpoint())
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tuner.integrations import current_trial
from tuner.training import seals
from tuner.training.options import keep_changes, options_of

# `pytorch_lightning` and `lightning.pytorch` define equal classes. A Trainer accepts only callbacks of its own package.
ALONE = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
PACKAGE = "pytorch_lightning" if ALONE else "lightning.pytorch"
Trainer: Any = importlib.import_module(PACKAGE).Trainer
callbacks: Any = importlib.import_module(f"{PACKAGE}.callbacks")
DummyLogger: Any = importlib.import_module(f"{PACKAGE}.loggers.logger").DummyLogger
streams: Any = importlib.import_module(f"{'lightning_fabric' if ALONE else 'lightning.fabric'}.utilities.seed")
FILE = "lightning.ckpt"
LAST = "last"  # folder of the last epoch's
# Lightning's module CHOOSER makes the logger of a Trainer without `logger=`: an object of a class in LOGGERS.
CHOOSER = importlib.import_module(f"{PACKAGE}.trainer.connectors.logger_connector.logger_connector")
CALLBACKS = importlib.import_module(f"{PACKAGE}.trainer.connectors.callback_connector")._CallbackConnector
LOGGERS = {name: getattr(CHOOSER, name) for name in ("TensorBoardLogger", "CSVLogger")}


class QuietLogger(DummyLogger):
    """Logs nothing; has the folder of a logger, in which a script, or LightningCLI, may save other files."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    @property
    def save_dir(self) -> str:
        return self._folder

    log_dir = save_dir


def _quiet_logger(save_dir: str, **options: Any) -> QuietLogger:
    return QuietLogger(os.path.join(save_dir, "lightning_logs", "version_0"))


class TunerCallback(callbacks.Checkpoint):
    """Reports the epochs of a Lightning `Trainer` and resumes it exactly; docs/frameworks.md says what else changes.

    Lightning saves a checkpoint without the random generators' states and before `ReduceLROnPlateau` takes its step.
    This callback saves the states and repeats the step. `quiet=False` leaves the progress bar and the loggers on.
    """

    def __init__(self, quiet: bool = True) -> None:
        self._active = current_trial.trial_id() is not None
        # A Trainer's own ModelCheckpoint, which this callback replaces, has no `monitor`: its best is the last epoch.
        self.best_model_path = ""  # for `trainer.test(ckpt_path="best")`
        self._quiet = quiet
        self._validated = False
        self._metrics: dict[str, float] = {}
        self._restored: dict[str, Any] = {}
        if self._active:
            self._folder = current_trial.local_folder(self)
            if quiet:
                # Lightning starts its loggers before it calls any callback, so their classes are replaced here.
                # `setup` restores the classes.
                os.environ.setdefault("WANDB_MODE", "disabled")
                vars(CHOOSER).update(dict.fromkeys(LOGGERS, _quiet_logger))

    @staticmethod
    def checkpoint() -> str | None:
        """Returns the checkpoint to resume, for `Trainer.fit(ckpt_path=...)`; None at epoch 0 or outside of a trial."""
        folder = current_trial.checkpoint_folder()
        if folder is None:
            return None
        if why := seals.why_unsafe(folder / FILE):
            raise ValueError(why)
        return str(folder / FILE)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        vars(CHOOSER).update(LOGGERS)
        if not self._active or stage != "fit":
            return
        current_trial.check_resumes("trainer.fit(..., ckpt_path=TunerCallback.checkpoint())")
        usual = os.path.join(trainer.log_dir or trainer.default_root_dir, "checkpoints")
        for callback in trainer.callbacks:
            if isinstance(callback, callbacks.ModelCheckpoint) and f"{callback.dirpath or usual}/".startswith(
                f"{usual}/"
            ):
                callback.dirpath = str(self._folder.path / "files")
        folder = current_trial.checkpoint_folder()
        is_ours = folder is not None and (folder / FILE).exists()  # else the script resumes from its own
        self._resumes = self.checkpoint() or "" if is_ours else ""
        trainer.strategy.load_checkpoint = partial(self._load, trainer.strategy.load_checkpoint)
        # This callback runs last, so that its checkpoint includes what other callbacks change at the end of an epoch.
        trainer.callbacks = [*(callback for callback in trainer.callbacks if callback is not self), self]
        if self._quiet:
            if trainer.progress_bar_callback is not None:
                trainer.progress_bar_callback.disable()
            if trainer.loggers:
                # Not empty: a model may call its logger.
                trainer.loggers = [QuietLogger(trainer.log_dir or trainer.default_root_dir)]

    def _load(self, load: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        """Loads a checkpoint; one that this process has saved, or that `checkpoint` allows, with all its objects."""
        if str(path) in (self._resumes, str(self._folder.path / LAST / FILE)) and seals.is_code(Path(path)):
            options["weights_only"] = False
        return load(path, *arguments, **options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self._active:
            self.best_model_path = self._resumes
            self._options = options_of(trainer.optimizers)  # before Lightning restores them from the checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Returns what Lightning's checkpoint lacks: random states, last metrics, and the initial optimizer options."""
        if not self._active:
            return {}
        states = streams._collect_rng_states()
        name, keys, *rest = states["numpy"]
        states["numpy"] = (name, keys.tolist(), *rest)  # plain values, because a resume reads with `weights_only`
        return {"streams": states, "metrics": self._metrics, "options": self._options}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict if self._active else {}  # the `on_train_...start` hooks apply it

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Completes a resume: does `ReduceLROnPlateau`'s pending step; sets optimizer options that pbt changed."""
        if not self._restored:
            return
        configs, metrics = trainer.lr_scheduler_configs, self._restored["metrics"]
        for config in configs if pl_module.automatic_optimization else ():
            due = config.interval == "epoch" and trainer.current_epoch % config.frequency == 0
            if config.reduce_on_plateau and due and config.monitor in metrics:
                pl_module.lr_scheduler_step(config.scheduler, metrics[config.monitor])
        schedulers = [config.scheduler for config in configs]
        keep_changes(trainer.optimizers, schedulers, self._restored["options"], self._options)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._restored:
            streams._set_rng_states(self._restored["streams"])
            self._restored = {}
            # Lightning made the data loaders' iterators before this hook, with random numbers of other states.
            iter(trainer.fit_loop._data_fetcher)  # makes the iterators again

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports the epoch with a checkpoint, unless the Trainer validates and this epoch had no validation."""
        if not self._active or trainer.enable_validation and not self._validated:
            return
        self._validated = False
        self._metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        path = self._folder.path / "checkpoint" / FILE
        trainer.save_checkpoint(path)  # all processes must call it
        if trainer.is_global_zero:
            seals.seal(path)
            self._folder.clear(LAST)
            (last := self._folder.path / LAST).mkdir()
            os.link(path, last / FILE)  # the report removes `path`
            self.best_model_path = str(last / FILE)
            current_trial.report(self._metrics, self._folder, "checkpoint")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.best_model_path = trainer.strategy.broadcast(self.best_model_path)


automatic = partial(current_trial.automatic, Trainer, "fit", "ckpt_path", TunerCallback, FILE)
_configured = CALLBACKS._configure_checkpoint_callbacks


def _configure(connector: Any, enable_checkpointing: bool) -> None:
    """Replaces Lightning's check, so that a Trainer with a `TunerCallback` may have `enable_checkpointing=False`."""
    ours = any(isinstance(callback, TunerCallback) for callback in connector.trainer.callbacks)
    _configured(connector, enable_checkpointing or ours)


CALLBACKS._configure_checkpoint_callbacks = _configure
