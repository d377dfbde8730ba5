"""Frameworks' own command lines as spaces, without a changed line: their reports are those that the training prints."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
LIGHTNING_CLI = """
import torch, lightning as L
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset

class Net(L.LightningModule):
    def __init__(self, lr: float = 0.1, width: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def error(self, batch):
        return ((self.net(batch[0]).squeeze() - batch[1]) ** 2).mean()

    def training_step(self, batch, index):
        return self.error(batch)

    def validation_step(self, batch, index):
        self.log("val_loss", self.error(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

class Data(L.LightningDataModule):
    def setup(self, stage=None):
        inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        self.data = TensorDataset(inputs, inputs.sum(1))

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=20, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=50)

if __name__ == "__main__":
    cli = LightningCLI(Net, Data, seed_everything_default=1, trainer_defaults={"max_epochs": 4, "accelerator": "cpu"})
    print("last value:", cli.trainer.callback_metrics["val_loss"].item())
"""
TRAINER = """
from dataclasses import dataclass, field
import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Own:
    width: int = field(default=4)

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def forward(self, inputs=None, labels=None):
        outputs = self.net(inputs).squeeze(-1)
        return {"loss": ((outputs - labels) ** 2).mean(), "logits": outputs}

own, arguments = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
torch.manual_seed(arguments.seed)
inputs = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
data = [{"inputs": each, "labels": each.sum()} for each in inputs]
trainer = Trainer(model=Net(own.width), args=arguments, train_dataset=data, eval_dataset=data)
trainer.train()
print("last value:", trainer.evaluate()["eval_loss"])
"""
RANKS = """
import sys
import torch
import torch.distributed as dist
from ray import tune

dist.init_process_group("gloo")
weight = torch.zeros(1)
for epoch in range(4):
    gradient = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(gradient)
    weight -= float(sys.argv[1]) * gradient
    loss = float((weight + 1) ** 2)
    tune.report({"loss": loss})
print("last value:", loss) if dist.get_rank() == 0 else None
"""
BIN = Path(sys.executable).parent
LAUNCHED = [str(BIN / "accelerate"), "launch", "--num_processes", "1", "--cpu", "train.py", "--output_dir", "out"]
EPOCHS = ["--num_train_epochs", "{max_epochs}", "--eval_strategy", "epoch", "--use_cpu", "true"]
CASES = {
    "LightningCLI": (
        LIGHTNING_CLI,
        [sys.executable, "train.py", "fit", "--model.lr", "{lr}", "--model.width", "{width}"],
        "val_loss",
        "jsonargparse",
    ),
    "accelerate launch": (TRAINER, [*LAUNCHED, *EPOCHS, "--learning_rate={lr}"], "eval_loss", "accelerate"),
    "torchrun": (
        RANKS,
        [str(BIN / "torchrun"), "--standalone", "--nproc_per_node=2", "train.py", "{lr}"],
        "loss",
        "torch",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_frameworks_command_is_searched_as_it_stands(search, tmp_path, monkeypatch, name):
    text, given, metric, package = CASES[name]
    if not importlib.util.find_spec(package):
        pytest.skip(f"no {package}")
    (folder := tmp_path / "project").mkdir()
    (folder / "train.py").write_text(text)
    words = [str(folder / word) if word == "train.py" else word for word in given]
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    params = ["--param", "lr=grid_search(0.001, 0.01, 0.03, 0.002)", "--param", "width=8"]
    options = ["--metric", metric, "--max-epochs", "4", "--num-samples", "1", "--scheduler", "asha-promotion"]
    taken = params if "{width}" in words or name == "accelerate launch" else params[:2]
    ran = search(None, *taken, *options, "--max-concurrent-trials", "1", "--", *words)
    assert ran.code == 0, ran.out + ran.err
    statuses = [trial.status for trial in ran.record.trials]
    assert statuses.count("completed") >= 1 and "pruned" in statuses
    best = ran.record.trials[statuses.index("completed")]
    values = {"lr": best.config["lr"], "max_epochs": 4, "width": 8}
    by_hand = [word.format(**values) for word in words] + (["--width=8"] if name == "accelerate launch" else [])
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(by_hand, cwd=folder, env=alone, capture_output=True, text=True)
    (value,) = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("last value:")]
    assert best.reports[-1].metrics[metric] == float(value), done.stdout + done.stderr
    if name != "torchrun":
        assert any((ran.folder / "best" / "checkpoint").iterdir())
