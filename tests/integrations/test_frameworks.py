"""The callbacks resume a Trainer of Hugging Face or Lightning exactly, quietly, and after pbt; no search, no Ray."""

import importlib.util
import math
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
METRICS = {"transformers_text": "eval_loss", "peft_lora": "eval_loss", "lightning_digits": "val_loss"}
CONFIGS = {
    "transformers_text": {"width": 16, "lr": 0.003},
    "peft_lora": {"rank": 2, "lr": 0.02},
    "lightning_digits": {"width": 16, "lr": 0.02, "batch_size": 64},
}


def skip_without(*packages):
    """Skips a test whose package is not installed: `uv run --group dev --group frameworks` brings all of them."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}, of the group `frameworks`")


HUGGING_FACE, LIGHTNING = skip_without("transformers", "accelerate"), skip_without("lightning")
CASES = [pytest.param("transformers_text", marks=HUGGING_FACE), pytest.param("lightning_digits", marks=LIGHTNING)]
SCRIPTED = [pytest.param("lightning", marks=LIGHTNING), pytest.param("transformers", marks=HUGGING_FACE)]
PEFT = pytest.param("peft_lora", marks=skip_without("transformers", "accelerate", "peft"))


class Trial:
    """A trial without a search: keeps what is reported and a copy of each checkpoint; ends after `most` reports."""

    def __init__(self, folder, monkeypatch):
        from ray import tune

        from tuner.integrations import current_trial

        self.folder, self.checkpoint, self.most, self.reports, self.saved = folder, None, 99, [], []
        monkeypatch.setattr(current_trial, "trial_id", lambda: folder)
        monkeypatch.setattr(tune, "report", self.report)
        monkeypatch.setattr(tune, "get_checkpoint", lambda: self.checkpoint)
        self._made = tune.Checkpoint.from_directory

    def report(self, metrics, checkpoint=None):
        self.reports.append(metrics)
        if checkpoint is None:
            self.saved.append(None)
            return
        copy = self.folder / f"saved{len(list(self.folder.iterdir()))}"
        shutil.copytree(checkpoint.path, copy)
        self.local = Path(checkpoint.path)
        self.saved.append(self._made(copy))
        if len(self.reports) >= self.most:
            raise SystemExit  # as Ray stops a trial

    def run(self, train, config, checkpoint=None, most=99):
        """Returns the reports and the checkpoints of a run from a checkpoint."""
        self.checkpoint, self.most, self.reports, self.saved = checkpoint, most, [], []
        try:
            train(config)
        except SystemExit:
            assert len(self.reports) == most
        return self.reports, self.saved


@pytest.fixture
def trial(tmp_path, monkeypatch):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    (tmp_path / "saved").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    yield Trial(tmp_path / "saved", monkeypatch)
    torch.set_num_threads(threads)


def example(name):
    """The names of an example's file."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [*CASES, PEFT])
def test_a_stopped_trial_goes_on_as_the_unbroken_one(name, trial, tmp_path, capfd):
    train = example(name)["train"]
    whole, saved = trial.run(train, CONFIGS[name])
    assert len(whole) == 4 and len({report[METRICS[name]] for report in whole}) == 4
    for epoch in (1, 2, 3):
        begun, (*_, last) = trial.run(train, CONFIGS[name], most=epoch)
        assert begun == whole[:epoch]
        assert not trial.local.exists()  # Ray has copied it
        assert trial.run(train, CONFIGS[name], last)[0] == whole[epoch:]
    assert trial.run(train, CONFIGS[name], saved[-1])[0] == []  # killed after the last report: nothing is left to do
    # Neither checkpoints nor logs of a framework. The Trainer makes `output_dir`; it stays empty.
    assert not [path for path in (tmp_path / "here").rglob("*") if not path.is_dir()]
    assert "it/s" not in "".join(capfd.readouterr())


@HUGGING_FACE
def test_the_best_model_is_loaded_at_the_end_also_after_a_resume(trial, tmp_path):
    import torch
    import transformers

    from tuner.integrations.transformers import TunerCallback

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": torch.nn.functional.mse_loss(self.net(x), labels), "logits": self.net(x)}

    def train(config):
        transformers.set_seed(5)
        data = [{"x": x, "labels": x.sum(0, keepdim=True)} for x in torch.randn(64, 4)]
        each_epoch = dict(eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True)
        steps = dict(num_train_epochs=4, learning_rate=0.9, lr_scheduler_type="constant", optim="sgd", use_cpu=True)
        args = transformers.TrainingArguments(str(tmp_path / "out"), **each_epoch, **steps)
        parts = {"train_dataset": data, "eval_dataset": data, "callbacks": [TunerCallback()]}
        trainer = transformers.Trainer(model=Line(), args=args, **parts)
        trainer.train(resume_from_checkpoint=TunerCallback.checkpoint())
        ends.append(trainer.evaluate()["eval_loss"])

    ends = []
    whole, saved = trial.run(train, {})
    losses = [report["eval_loss"] for report in whole]
    assert ends == [min(losses)] and losses.index(min(losses)) < 2, losses
    for checkpoint in saved:
        trial.run(train, {}, checkpoint)
    assert ends == [min(losses)] * 5


@pytest.mark.parametrize("name", CASES)
def test_a_trial_resumes_from_an_object_store(name, trial):
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
    from ray import tune

    from tuner.integrations import current_trial

    train = example(name)["train"]
    whole, saved = trial.run(train, CONFIGS[name])
    store = SubTreeFileSystem(str(trial.folder), LocalFileSystem())
    checkpoint = tune.Checkpoint(Path(saved[1].path).name, filesystem=store)
    assert trial.run(train, CONFIGS[name], checkpoint)[0] == whole[2:]
    assert current_trial._resumed == {}


def trainer_after_pbt(trial, monkeypatch, trainer, method, name, changes):
    """The Trainer of an example's trial that pbt gave the checkpoint of another trial, and changed parameters."""
    made, run = [], getattr(trainer, method)
    monkeypatch.setattr(
        trainer, method, lambda self, *args, **options: run(made.append(self) or self, *args, **options)
    )
    train = example(name)["train"]
    _, saved = trial.run(train, CONFIGS[name], most=1)
    trial.run(train, CONFIGS[name] | changes, saved[-1], most=1)
    return made[-1]


@LIGHTNING
@pytest.mark.parametrize("logger", ["its own", None], ids=str)
def test_a_lightning_script_tests_its_best_model_and_writes_beside_its_logs(trial, tmp_path, logger):
    import lightning as L
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.loggers import CSVLogger

    from tuner.integrations.lightning import TunerCallback

    tested = []

    class Model(BoringModel):
        def validation_step(self, batch, index):
            self.log("loss", self.step(batch))

        def test_step(self, batch, index):
            assert self.logger.log_dir == self.trainer.log_dir
            tested.append(self.layer.weight.clone())

    def train(config):
        own = {"logger": CSVLogger("logs", version=3)} if logger else {}
        trainer = L.Trainer(max_epochs=2, callbacks=[TunerCallback()], enable_model_summary=False, **own)
        model = Model()
        trainer.fit(model, ckpt_path=TunerCallback.checkpoint())
        last = model.layer.weight.clone()
        with L.pytorch.utilities.seed.isolate_rng():
            model.layer.reset_parameters()
        trainer.test(model, ckpt_path="best", verbose=False)
        assert (tested[-1] == last).all()
        assert trainer.log_dir.endswith("lightning_logs/version_3" if logger else "lightning_logs/version_0")

    reports, _ = trial.run(train, {})
    assert len(reports) == 2 and tested
    assert not [path for path in (tmp_path / "here").rglob("*") if not path.is_dir()]


@LIGHTNING
def test_pbt_gives_a_lightning_trial_the_rate_and_the_batch_size(trial, monkeypatch):
    import lightning as L

    changes = {"lr": 0.08, "batch_size": 32}
    trainer = trainer_after_pbt(trial, monkeypatch, L.Trainer, "fit", "lightning_digits", changes)
    (group,) = trainer.optimizers[0].param_groups
    assert group["lr"] == pytest.approx(0.08) and trainer.train_dataloader.batch_size == 32


@HUGGING_FACE
def test_pbt_gives_a_hugging_face_trial_the_rate_on_the_schedule(trial, monkeypatch):
    from transformers import Trainer

    trainer = trainer_after_pbt(trial, monkeypatch, Trainer, "train", "transformers_text", {"lr": 0.012})
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert rates == pytest.approx([0.012 / 2] * 2)  # linear to 0, halfway


def change_arguments(monkeypatch, **changes):
    """Gives the example's Hugging Face Trainer other arguments."""
    import transformers

    init = transformers.TrainingArguments.__post_init__
    monkeypatch.setattr(
        transformers.TrainingArguments, "__post_init__", lambda self: (vars(self).update(changes), init(self))[1]
    )


@HUGGING_FACE
def test_another_batch_size_than_the_checkpoints_is_refused(trial, monkeypatch):
    train, batch = example("transformers_text")["train"], "per_device_train_batch_size"
    _, saved = trial.run(train, CONFIGS["transformers_text"], most=1)
    change_arguments(monkeypatch, **{batch: 8})
    with pytest.raises(ValueError, match=f"trained with {batch}=16, and this trial has 8: .* parameters of the optim"):
        trial.run(train, CONFIGS["transformers_text"], saved[-1])


@HUGGING_FACE
@pytest.mark.parametrize("steps", [3, pytest.param(5, marks=pytest.mark.nightly)])
def test_evaluations_within_an_epoch_are_resumed_there(trial, monkeypatch, steps):
    change_arguments(monkeypatch, eval_strategy="steps", eval_steps=steps, num_train_epochs=2)
    train, config = example("transformers_text")["train"], CONFIGS["transformers_text"]
    whole, saved = trial.run(train, config)
    assert len(whole) == math.ceil(32 / steps)
    for number, checkpoint in enumerate(saved, 1):
        assert trial.run(train, config, checkpoint)[0] == whole[number:]


SCRIPTS = {
    "lightning": """
import lightning as L
import torch

class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        loss = self.net(batch).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

L.seed_everything(0)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), 16, shuffle=True)
trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Line(), loader)
""",
    "transformers": """
import torch
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
size = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
torch.manual_seed(0)
examples = [{"input_ids": torch.randint(0, 50, (8,)), "labels": number % 2} for number in range(32)]
Trainer(model=BertForSequenceClassification(BertConfig(**size)), args=arguments, train_dataset=examples).train()
""",
}


def script_trial(trial, path):
    """The function of a script's trials."""
    from tuner.spec.script import Script, in_trial

    def train(config):
        with in_trial(config, "loss") as running:
            running.num_reports = lambda: len(trial.reports)
            Script(str(path), path.read_text())(config)

    return train


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_script_with_a_trainer_reports_and_resumes_without_a_callback(name, trial, tmp_path):
    path = tmp_path / "main.py"
    path.write_text(SCRIPTS[name])
    config = {"lr": 0.02, "learning_rate": 0.02, "output_dir": "out", "num_train_epochs": 3, "use_cpu": True}
    train = script_trial(trial, path)
    whole, saved = trial.run(train, config)
    assert len(whole) == 3 and len({report["loss"] for report in whole}) == 3
    assert trial.run(train, config, saved[0])[0] == whole[1:]


OWN = """
from ray import tune
class Own(L.Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch >= FIRST:
            tune.report({"own": trainer.current_epoch})

L.seed"""


@LIGHTNING
def test_a_script_that_reports_before_its_trainer_reports_alone(trial, tmp_path):
    text = SCRIPTS["lightning"].replace("max_epochs=3", "max_epochs=3, callbacks=[Own()]").replace("L.seed", OWN)
    path = tmp_path / "main.py"
    path.write_text(text.replace("FIRST", "0"))
    reports, saved = trial.run(script_trial(trial, path), {"lr": 0.02})
    assert reports == [{"own": 0}, {"own": 1}, {"own": 2}] and not any(saved)
    path.write_text(text.replace("FIRST", "1"))
    with pytest.raises(ValueError, match="the script calls tune.report, and its Trainer reports by itself"):
        trial.run(script_trial(trial, path), {"lr": 0.02})


@pytest.mark.parametrize("name", CASES)
def test_a_script_that_would_not_resume_is_refused_at_its_start(name, trial):
    code = (EXAMPLES / f"{name}.py").read_text()
    words = "ckpt_path=TunerCallback.checkpoint()", "resume_from_checkpoint=TunerCallback.checkpoint()"
    (line,) = [word for word in words if f"{word})\n" in code]
    forgetful = {"__name__": "forgetful"}
    exec(code.replace(f"{line})\n", ")\n").replace("*loaders, )", "*loaders)"), forgetful)
    with pytest.raises(ValueError, match="would not resume from the trial's checkpoint: write trainer"):
        trial.run(forgetful["train"], CONFIGS[name])


@pytest.mark.parametrize("name", CASES)
def test_outside_a_search_the_callback_does_nothing(name, trial, monkeypatch, capfd):
    from tuner.integrations import current_trial

    monkeypatch.setattr(current_trial, "trial_id", lambda: None)
    assert trial.run(example(name)["train"], CONFIGS[name]) == ([], [])
    assert "it/s" in "".join(capfd.readouterr())  # a progress bar, as always


@LIGHTNING
@pytest.mark.parametrize("every", [1, 2])
def test_a_lightning_trial_with_callbacks_and_loaders_of_its_own(trial, every, tmp_path):
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    def others():
        return [EarlyStopping("val_loss", patience=2, min_delta=0.01), ModelCheckpoint(monitor="val_loss")]

    options = {"check_val_every_n_epoch": every, "max_epochs": 12, "enable_model_summary": False}
    whole, saved = trial.run(digits_trainer(others, **options), {})
    assert 3 <= len(whole) < 12 // every  # it ends early
    for number in (1, 2):
        assert trial.run(digits_trainer(others, **options), {}, saved[number - 1])[0] == whole[number:]
    assert list((tmp_path / "here").iterdir()) == []


@LIGHTNING
def test_a_checkpoint_with_own_objects_is_loaded_only_if_this_search_has_saved_it(trial, monkeypatch):
    import lightning as L
    import torch

    restored = []

    class Odd(L.Callback):
        def state_dict(self):
            return {"odd": SimpleNamespace(epoch=3)}

        def load_state_dict(self, state):
            restored.append(state["odd"].epoch)

    monkeypatch.setenv("TUNER_SEAL_KEY", "ours")
    train = digits_trainer(lambda: [Odd()])
    whole, _ = trial.run(train, {})
    _, saved = trial.run(train, {}, most=2)
    assert trial.run(train, {}, saved[0])[0] == whole[1:] and restored == [3]
    monkeypatch.setenv("TUNER_SEAL_KEY", "another search's")
    refused = r"more than tensors and plain values \(types.SimpleNamespace\), and this search has not saved it so"
    with pytest.raises(ValueError, match=refused):
        trial.run(train, {}, saved[0])
    monkeypatch.setenv("TUNER_SEAL_TRUSTED", "1")
    assert trial.run(train, {}, saved[0])[0] == whole[1:]
    monkeypatch.setenv("TUNER_SEAL_TRUSTED", "")
    monkeypatch.setenv("TUNER_SEAL_KEY", "ours")
    torch.save({"state_dict": Evil()}, Path(saved[0].path) / "lightning.ckpt")
    with pytest.raises(ValueError, match="more than tensors and plain values"):
        trial.run(train, {}, saved[0])
    assert "ran" not in sys.argv


class Evil:
    def __reduce__(self):
        return (sys.argv.append, ("ran",))


def digits_trainer(others=list, **options):
    """The training function of the example, with other callbacks and arguments, and loader processes."""

    def train(config):
        import lightning as L
        from torch.utils.data import DataLoader

        from tuner.integrations.lightning import TunerCallback

        names = example("lightning_digits")
        L.seed_everything(0, verbose=False)
        arguments = {"max_epochs": 3, "accelerator": "cpu", **options}
        trainer = L.Trainer(callbacks=[TunerCallback(), *others()], **arguments)
        data = names["digits"](64, 0)
        every = arguments.get("check_val_every_n_epoch", 1)

        class Digits(names["Digits"]):
            def configure_optimizers(self):
                parts = super().configure_optimizers()
                parts["lr_scheduler"]["scheduler"].threshold = 0.3  # hardly an epoch improves so much
                return {**parts, "lr_scheduler": {**parts["lr_scheduler"], "frequency": every}}

        loaders = DataLoader(data, 16, shuffle=True, num_workers=1), DataLoader(names["digits"](64, 1), 64)
        trainer.fit(Digits(16, 0.02), *loaders, ckpt_path=TunerCallback.checkpoint())

    return train
