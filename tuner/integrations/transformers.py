"""Runs a Hugging Face `Trainer` as a trial of a search.

from tuner.integrations.transformers import TunerCallback

trainer = Trainer(..., callbacks=[TunerCallback()])
trainer.train(resume_from_checkpoint=TunerCallback.checkpoint())
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers import trainer as trainer_module
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import logging as transformers_logging

from tuner.integrations import current_trial
from tuner.training.options import Options, keep_changes, options_of, plain_options

OPTIONS = "tuner.json"  # file in the Trainer's checkpoint: initial optimizer options, values of the arguments in PLACE
BEST = "best"  # folder of the best model, also in a later checkpoint, if the Trainer loads it at the end
NO_MODEL = ("optimizer*", "scheduler*", "rng_state*")  # files of a checkpoint that its model does not need
SPEED = ("_runtime", "_per_second", "_jit_compilation_time")  # endings of the metrics of speed, which are not reported
# A resumed Trainer computes its place in the data from these arguments. With other values it would repeat or skip
# examples.
PLACE = ("per_device_train_batch_size", "gradient_accumulation_steps", "auto_find_batch_size")


class TunerCallback(TrainerCallback):
    """Reports each evaluation of a Hugging Face `Trainer` with the Trainer's own checkpoint; see docs/frameworks.md.

    Without an evaluation (`eval_strategy="no"`) it reports at each epoch's end the training loss since the last log.
    In a trial it changes the Trainer's arguments (`on_init_end`). `quiet=False` keeps the progress bar and loggers.
    """

    def __init__(self, quiet: bool = True) -> None:
        self._active = current_trial.trial_id() is not None
        self._training = False
        self._metrics: dict[str, Any] = {}
        self._best_metric: float | None = None  # of the model in BEST
        self._own_options: Options | None = None
        if self._active:
            self._folder = current_trial.local_folder(self)
            if quiet:
                # A Trainer chooses progress bar and loggers in `__init__`: its module is changed until `on_init_end`.
                vars(trainer_module).update(QUIET)
                transformers_logging.disable_progress_bar()  # the bar that shows how a checkpoint is loaded

    @staticmethod
    def checkpoint() -> str | None:
        """Returns the checkpoint to resume from, for `Trainer.train(resume_from_checkpoint=...)`; None without one."""
        folder = current_trial.checkpoint_folder()
        return None if folder is None else str(folder)

    def on_init_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        vars(trainer_module).update(LOUD)
        if self._active:
            self._output_dir = args.output_dir
            args.output_dir = str(self._folder.path)
            args.save_strategy = SaveStrategy.NO
            args.load_best_model_at_end &= args.world_size == 1  # the other processes know no folder with the best
            args.restore_callback_states_from_checkpoint = True  # such as EarlyStoppingCallback's counter
            if parts.get("optimizer") is not None:
                self._own_options = options_of([parts["optimizer"]])

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Raises ValueError if the script does not resume or PLACE's values changed; sets options that pbt changed."""
        if not self._active:
            return
        if args.output_dir != str(self._folder.path):  # `on_init_end` is not called for one that `add_callback` adds
            self.on_init_end(args, state, control)
        current_trial.check_resumes("trainer.train(resume_from_checkpoint=TunerCallback.checkpoint())")
        self._training = True
        optimizer = parts["optimizer"]
        options = self._own_options or [_options_by(args, optimizer)]
        self._made = {"options": options, **{name: getattr(args, name) for name in PLACE}}
        folder = current_trial.checkpoint_folder()
        if folder is None or not (folder / OPTIONS).exists():  # or the script resumes from its own
            return
        if args.load_best_model_at_end and state.best_metric is not None:
            self._keep_best(state, folder / BEST if (folder / BEST).exists() else folder)
        saved = json.loads((folder / OPTIONS).read_text())
        for name in PLACE:
            if saved[name] != self._made[name]:
                raise ValueError(
                    f"the checkpoint was trained with {name}={saved[name]!r}, and this trial has {self._made[name]!r}: "
                    "a Hugging Face Trainer cannot resume it; mutable= may name only parameters of the optimizer"
                )
        keep_changes([optimizer], [parts["lr_scheduler"]], saved["options"], self._made["options"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """If the Trainer does not evaluate, makes it log its training loss and save a checkpoint."""
        if self._training and args.eval_strategy == IntervalStrategy.NO:
            control.should_log = control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        if logs and "loss" in logs and args.eval_strategy == IntervalStrategy.NO:
            self._metrics = {"loss": logs["loss"]}

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **parts: Any) -> None:
        """Keeps the evaluation's metrics; makes the Trainer save a checkpoint and then call `on_save`."""
        if self._training and state.global_step:
            kept = {name: value for name, value in (metrics or {}).items() if not name.endswith(SPEED)}
            self._metrics |= {name: value for name, value in kept.items() if name != "epoch"}
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Reports the latest metrics with the checkpoint that the Trainer has just saved."""
        if self._training and self._metrics and state.is_world_process_zero:
            folder = self._folder.path / f"checkpoint-{state.global_step}"
            (folder / OPTIONS).write_text(json.dumps(self._made))
            if args.load_best_model_at_end and state.best_metric != self._best_metric:
                state.best_global_step = state.global_step  # the Trainer leaves it to its own saves
                self._keep_best(state, folder)
            elif args.load_best_model_at_end and (best := self._folder.path / BEST).exists():
                shutil.copytree(best, folder / BEST)  # for a resume
            metrics, self._metrics = self._metrics, {}
            current_trial.report(metrics, self._folder, folder.name)

    def _keep_best(self, state: Any, folder: Path) -> None:
        """Copies the model of the best checkpoint, which the report removes, for `load_best_model_at_end`."""
        self._folder.clear(BEST)
        self._best_metric = state.best_metric
        best = shutil.copytree(folder, self._folder.path / BEST, ignore=shutil.ignore_patterns(*NO_MODEL))
        state.best_model_checkpoint = str(best)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._training = False  # so that `trainer.evaluate` after the training is not reported
        if not self._active:
            return
        if Path(self._output_dir).is_absolute():
            print(
                f"tuner: {self._output_dir} stays as it is, since every trial would overwrite it: what is saved after "
                "the training is removed; its checkpoint has the model. A relative output_dir is the trial's own"
            )
        else:
            args.output_dir = self._output_dir  # for `trainer.save_model()`, into the trial's own folder


automatic = partial(
    current_trial.automatic, trainer_module.Trainer, "train", "resume_from_checkpoint", TunerCallback, OPTIONS
)


def _options_by(args: Any, optimizer: Any) -> list[dict[str, Any]]:
    """Returns the options of a Trainer's new optimizer; its first parameter group has weight decay, the others none."""
    plain = plain_options({**optimizer.defaults, "lr": args.learning_rate, "weight_decay": 0.0})
    return [{**plain, "weight_decay": args.weight_decay}, *[plain] * (len(optimizer.param_groups) - 1)]


# Attribute of the Trainer's module -> original value: the progress bar's class, the function that chooses the loggers.
LOUD = {
    name: getattr(trainer_module, name) for name in ("DEFAULT_PROGRESS_CALLBACK", "get_reporting_integration_callbacks")
}
QUIET = {"DEFAULT_PROGRESS_CALLBACK": TrainerCallback, "get_reporting_integration_callbacks": lambda report_to: []}
