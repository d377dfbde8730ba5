"""A command reports what it logs to W&B, TensorBoard, MLflow and Keras; of several ways to report, the first counts."""

import json
import os
import subprocess
import sys

import pytest

from tuner.spec.command_process import IN_COMMAND

WANDB = """
import sys, wandb
with wandb.init(project="p", config={"lr": 9}) as run:
    for epoch in range(3):
        wandb.log({"train": 1.0}, step=epoch)
        run.log({"loss": wandb.config.lr + 1 / (epoch + 1)}, step=epoch)
        if epoch < 2:
            run.log({"acc": epoch}, step=epoch)
assert run.settings.mode == "disabled", run.settings.mode
"""
TENSORBOARD = """
from {package} import SummaryWriter
import sys
writer = SummaryWriter()
for epoch in range(3):
    for batch in range(2):
        writer.add_scalar("train", 1.0, epoch * 2 + batch)
    writer.add_scalar("loss", float(sys.argv[1]) + 1 / (epoch + 1), epoch)
    if epoch < 2:
        writer.add_scalar("acc", epoch, global_step=epoch)
"""
MLFLOW = """
import os, sys
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
mlflow.set_tracking_uri("file:./mlruns")
for epoch in range(3):
    mlflow.log_metric("train", 1.0, step=epoch)
    mlflow.log_metrics({"loss": float(sys.argv[1]) + 1 / (epoch + 1)}, step=epoch)
    if epoch < 2:
        mlflow.log_metric("acc", epoch, epoch)
"""
KERAS = """
import json, os, sys
os.environ["KERAS_BACKEND"] = "torch"
import numpy
import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(float(sys.argv[1])), loss="mse")
inputs = numpy.ones((32, 4), "float32")

class Printed(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(json.dumps({"loss": -1.0}))

history = model.fit(inputs, inputs.sum(1), epochs=3, verbose=0, callbacks=[Printed()]).history
print("history:", json.dumps(history["loss"]))
"""


def searched(search, tmp_path, text, *options):
    (tmp_path / "train.py").write_text(text)
    given = ["--param", "lr=choice(0.25)", "--num-samples", "1", *options]
    ran = search(None, *given, "--", sys.executable, str(tmp_path / "train.py"), "{lr}")
    output = "".join(path.read_text() for path in ran.folder.glob("ray/*/std*"))
    return ran, [report.metrics for trial in ran.record.trials for report in trial.reports], output


@pytest.mark.parametrize(
    ("text", "package", "way"),
    [
        (WANDB, "wandb", "wandb.log"),
        (TENSORBOARD, "tensorboardX", "TensorBoard"),
        pytest.param(TENSORBOARD, "torch.utils.tensorboard", "TensorBoard", marks=pytest.mark.slow),
        pytest.param(MLFLOW, "mlflow", "MLflow", marks=pytest.mark.slow),
    ],
    ids=["wandb", "tensorboardX", "torch", "mlflow"],
)
def test_each_step_that_a_logger_gets_is_one_report(search, tmp_path, text, package, way):
    pytest.importorskip(package)
    ran, reports, output = searched(search, tmp_path, text.replace("{package}", package))
    assert ran.code == 0, ran.out + ran.err + output
    logged = [{"train": 1.0, "loss": 0.25 + 1 / n} | ({"acc": n - 1} if n < 3 else {}) for n in (1, 2, 3)]
    assert reports == logged
    assert output.count(f"tuner: reports come by {way}") == 1


@pytest.mark.slow
def test_an_epoch_of_keras_is_a_report_and_what_its_callbacks_print_is_none(search, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("keras")
    ran, reports, output = searched(search, tmp_path, KERAS)
    assert ran.code == 0, ran.out + ran.err + output
    (history,) = [line.partition(":")[2] for line in output.splitlines() if line.startswith("history:")]
    assert [each["loss"] for each in reports] == pytest.approx(json.loads(history)) and len(reports) == 3


TWO_WAYS = """
import json
from tuner_trial import report
import wandb
wandb.init()
for epoch in range(3):
    {first}
    {second}
"""
BY_REPORT, BY_WANDB, BY_PRINT = (
    "report({'loss': epoch})",
    "wandb.log({'loss': epoch + 10})",
    "print(json.dumps({'loss': epoch + 20}))",
)


def test_of_two_ways_to_report_the_first_of_the_order_counts_if_it_comes_first(search, tmp_path):
    both = TWO_WAYS.format(first=BY_REPORT, second=BY_WANDB) + BY_PRINT
    ran, reports, output = searched(search, tmp_path, both)
    assert ran.code == 0 and [each["loss"] for each in reports] == [0, 1, 2], ran.out + output
    assert output.count("reports by wandb.log are left out, because tuner_trial reports") == 1


LOWER_FIRST = """
import json, tensorboardX, wandb
writer = tensorboardX.SummaryWriter()
wandb.init()
for epoch in range(3):
    writer.add_scalar("loss", epoch + 10, epoch)
    wandb.log({"loss": epoch}, step=epoch)
    print(json.dumps({"loss": epoch + 20}))
"""


def test_a_way_that_waits_for_its_second_step_leaves_others_the_first_place(search, tmp_path):
    ran, reports, output = searched(search, tmp_path, LOWER_FIRST)
    assert ran.code == 0 and [each["loss"] for each in reports] == [0, 1, 2], ran.out + output
    assert output.count("reports by TensorBoard are left out, because wandb.log reports") == 1


def test_a_way_that_comes_too_late_fails_the_trial(search, tmp_path):
    ran, _, output = searched(search, tmp_path, TWO_WAYS.format(first=BY_WANDB, second=BY_REPORT))
    assert ran.code == 1 and "reports loss by wandb.log, and then another value" in ran.out, ran.out + output
    assert "let tuner_trial report first" in ran.out


SAME = "print(json.dumps({'loss': epoch}))", "wandb.log({'loss': epoch})", "report({'loss': epoch})"


def test_ways_that_repeat_the_first_epoch_of_another_replace_it(search, tmp_path):
    text = TWO_WAYS.format(first=SAME[0], second=SAME[1]) + "    " + SAME[2]
    ran, reports, output = searched(search, tmp_path, text)
    assert ran.code == 0 and [each["loss"] for each in reports] == [0, 1, 2], ran.out + output
    assert output.count("wandb.log repeats the report by printed lines; from now on") == 1
    assert output.count("tuner_trial repeats the report by wandb.log; from now on") == 1
    assert output.count("reports by wandb.log are left out, because tuner_trial reports") == 1


@pytest.mark.parametrize("more", ["report({'loss': 2})", "report({'loss': 1}, checkpoint='.')"])
def test_a_way_that_begins_with_another_value_or_a_checkpoint_repeats_nothing(search, tmp_path, more):
    text = f"from tuner_trial import report\nimport wandb\nwandb.init()\nwandb.log({{'loss': 1}})\n{more}\n"
    ran, _, output = searched(search, tmp_path, text)
    assert ran.code == 1 and "let tuner_trial report first" in ran.out, ran.out + output


def test_a_process_that_the_program_starts_may_report_what_the_program_only_logs(search, tmp_path):
    text = "import json, subprocess, sys, wandb\nwandb.init()\nfor epoch in range(3):\n"
    text += "    wandb.log({'loss': epoch}, step=epoch)\n"
    text += "    subprocess.run([sys.executable, '-m', 'tuner_trial', json.dumps({'loss': epoch})], check=True)\n"
    ran, reports, output = searched(search, tmp_path, text)
    assert ran.code == 0 and [each["loss"] for each in reports] == [0, 1, 2], ran.out + output


FORKS = """
import multiprocessing, wandb
wandb.init()
def phase(first, last):
    for epoch in range(first, last):
        wandb.log({'loss': epoch}STEP)
phase(0, FIRST)
other = multiprocessing.get_context('fork').Process(target=phase, args=(FIRST, 4))
other.start()
other.join()
"""


@pytest.mark.parametrize("step", ["", ", step=epoch"], ids=["without steps", "with steps"])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_process_that_the_program_forks_reports_what_it_logs_unless_the_program_does(search, tmp_path, step, first):
    ran, reports, output = searched(search, tmp_path, FORKS.replace("STEP", step).replace("FIRST", str(first)))
    if first:
        assert ran.code == 1 and "two processes of the command report" in ran.out, ran.out + output
    else:
        assert ran.code == 0 and [each["loss"] for each in reports] == [0, 1, 2, 3], ran.out + output


OWN_TUNER = """
import ray
from ray import tune
import tuner_trial

ray.init("local", num_cpus=1, include_dashboard=False)

def train(config):
    from tensorboardX import SummaryWriter
    writer = SummaryWriter()
    for epoch in range(3):
        writer.add_scalar("loss", 700 + epoch, epoch)
    tuner_trial.report({"loss": 778})
    tune.report({"loss": 777})

result = tune.Tuner(train, param_space={"x": 1}).fit()[0]
tuner_trial.report({"loss": result.metrics["loss"] + 1})
"""


@pytest.mark.slow
def test_trials_of_a_tuner_that_the_program_runs_do_not_report_for_the_program(search, tmp_path):
    ran, reports, output = searched(search, tmp_path, OWN_TUNER)
    assert ran.code == 0 and [each["loss"] for each in reports] == [778], ran.out + output


ENDS = """
import wandb
wandb.init()
wandb.log({"accuracy": 1.0})
wandb.log({"val_los": 1.0})
"""


def test_a_program_that_never_logs_the_metric_fails_with_what_it_logged(search, tmp_path):
    ran, reports, _ = searched(search, tmp_path, ENDS, "--metric", "val_loss")
    assert ran.code == 1 and reports == []
    assert "did you mean 'val_los'?; it logged accuracy, val_los" in ran.out


def test_nothing_changes_outside_of_a_trial(tmp_path):
    code = "import tensorboardX, wandb; print(wandb.init.__module__, tensorboardX.SummaryWriter.add_scalar.__module__)"
    alone = {name: value for name, value in os.environ.items() if name != "TUNER_TRIAL"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**alone, "PYTHONPATH": IN_COMMAND}, capture_output=True, text=True
    )
    assert "tuner" not in done.stdout and "wandb" in done.stdout, done.stderr


LIGHTNING = """
import sys, torch, wandb, lightning as L
from lightning.pytorch.loggers import WandbLogger
from torch.utils.data import DataLoader, TensorDataset

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return ((self.net(batch[0]).squeeze() - batch[1]) ** 2).mean()

    def validation_step(self, batch, index):
        loss = self.training_step(batch, index)
        self.log("val_loss", loss)
        self.logger.log_metrics({"val_loss": loss.item()})
        if not self.trainer.sanity_checking:
            wandb.log({"val_loss": -1.0})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=float(sys.argv[1]) / 10)

inputs = torch.randn(40, 4)
data = DataLoader(TensorDataset(inputs, inputs.sum(1)), batch_size=40)
wandb.init(project="p")
trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=WandbLogger(project="p"), enable_progress_bar=False)
trainer.fit(Net(), data, data)
print("last value:", trainer.callback_metrics["val_loss"].item())
"""


@pytest.mark.slow
def test_lightning_with_the_logger_of_wandb_reports_each_epoch_once(search, tmp_path):
    pytest.importorskip("lightning")
    ran, reports, output = searched(search, tmp_path, LIGHTNING, "--metric", "val_loss")
    assert ran.code == 0, ran.out + ran.err + output
    (last,) = [float(line.split()[-1]) for line in output.splitlines() if line.startswith("last value:")]
    assert len(reports) == 3 and reports[-1]["val_loss"] == last
    assert "reports by wandb.log are left out, because the Trainer reports" in output


@pytest.mark.slow
def test_a_report_in_a_lightning_module_counts_once_an_epoch_and_not_in_the_sanity_check(search, tmp_path):
    pytest.importorskip("lightning")
    text = LIGHTNING.replace("self.logger.log_metrics", "tune.report")
    ran, reports, output = searched(search, tmp_path, "from ray import tune\n" + text, "--metric", "val_loss")
    assert ran.code == 0, ran.out + ran.err + output
    (last,) = [float(line.split()[-1]) for line in output.splitlines() if line.startswith("last value:")]
    assert len(reports) == 3 and reports[-1]["val_loss"] == last
    assert "tuner: reports come by tune.report" in output and "because tune.report reports" in output


TWO_WRITERS = """
from tensorboardX import SummaryWriter
train, val = SummaryWriter("runs/train"), SummaryWriter("runs/val")
for epoch in range(3):
    val.add_scalar("loss", epoch, epoch)
    {line}
val.add_hparams({{"lr": 0.1}}, {{"loss": 2}})
"""


@pytest.mark.parametrize(
    ("line", "code"), [("train.add_scalar('a', epoch, epoch)", 0), ("train.add_scalar('loss', 9, epoch)", 1)]
)
def test_the_metric_is_logged_by_one_writer(search, tmp_path, line, code):
    ran, reports, output = searched(search, tmp_path, TWO_WRITERS.format(line=line))
    assert ran.code == code, ran.out + output
    if code:
        assert "'loss' is logged in runs/val and in runs/train: which is the metric?" in output
    else:
        assert [each["loss"] for each in reports] == [0, 1, 2]


def test_two_writers_may_log_the_metric_if_something_else_reports_it(search, tmp_path):
    text = TWO_WRITERS.format(line="train.add_scalar('loss', 9, epoch); tuner_trial.report({'loss': epoch})")
    ran, reports, output = searched(search, tmp_path, "import tuner_trial\n" + text)
    assert ran.code == 0 and [each["loss"] for each in reports] == [0, 1, 2], ran.out + output


def test_what_is_logged_does_not_say_of_which_epoch_a_saved_file_is(search, tmp_path):
    saves = "import os, tensorboardX\nwriter = tensorboardX.SummaryWriter()\nfor epoch in range(3):\n"
    saves += "    writer.add_scalar('loss', epoch, epoch)\n"
    saves += "    open(os.path.join(os.environ['TUNER_TRIAL'], 'checkpoint', 'model'), 'a').write('x')\n"
    ran, _, output = searched(search, tmp_path, saves)
    assert (
        ran.code == 1 and "the command has saved a checkpoint, but its printed or logged reports do not say" in output
    )
