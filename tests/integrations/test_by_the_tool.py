"""The same script by the tool that it was written for, and by a search over the same settings: equal in each digit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from ray import tune
from test_frameworks import HUGGING_FACE, LIGHTNING

from tuner import search

LEARNING_RATES = (0.1, 0.01, 0.001)


def curve(config):
    """Four reports with a checkpoint each, from nested parameters and a list; the third report is the best."""
    net, layers = config["net"], config["layers"]
    assert layers[1] == "relu" and config["sizes"] == [1, 2]  # also a list without domains arrives
    for epoch in range(4):
        loss = (net["lr"] - 0.03) ** 2 / 7 + abs(epoch - 2) * layers[0] / 3000 + config["twice"] / 900
        Path("kept").mkdir(exist_ok=True)
        Path("kept/weights").write_text(repr(loss))
        checkpoint = tune.Checkpoint.from_directory("kept")
        tune.report({"eval": {"loss": loss}, "progress": epoch / 3, "lr": net["lr"]}, checkpoint=checkpoint)


def tuner_of(folder, mode):
    twice = tune.sample_from(lambda spec: spec.config.net.lr * 2)
    layers = [tune.choice([8]), "relu"]
    net = {"lr": tune.grid_search(list(LEARNING_RATES))}
    return tune.Tuner(
        curve,
        param_space={"net": net, "layers": layers, "twice": twice, "sizes": [1, 2]},
        tune_config=tune.TuneConfig(metric="eval/loss", mode=mode, max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=str(folder), name="run", verbose=0, stop={"progress": 0.9}),
    )


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_script_of_ray_tune(here, capsys, monkeypatch, mode):
    result = search(tuner_of(here, mode), wandb="disabled")
    out = capsys.readouterr().out
    assert "NOTE: the Tuner: not used: RunConfig name, verbose\n" in out and "as in get_best_result(scope=" in out
    monkeypatch.chdir(here)
    theirs = tuner_of(here, mode).fit()
    curves = {each.config["net"]["lr"]: [*each.metrics_dataframe["eval/loss"]] for each in theirs}
    reports = [json.loads(line) for line in (result.folder / "journal.jsonl").read_text().splitlines()]
    reports = [each["metrics"] for each in reports if each["event"] == "report"]
    assert len(curves) == 3 and all(len(each) == 4 for each in curves.values())
    ours = {lr: [each["eval/loss"] for each in reports if each["lr"] == lr] for lr in LEARNING_RATES}
    assert ours == curves
    best = theirs.get_best_result(scope="all")
    assert result.best.config == {
        **{name: best.config[name] for name in ("net", "twice")},
        "layers": {"0": 8, "1": "relu"},
    }
    # Ray's Result has the values of the last report; its best checkpoint is the one of ours.
    kept = best.get_best_checkpoint("eval/loss", mode)
    with kept.as_directory() as folder, result.best.checkpoint.as_directory() as own:
        texts = [Path(each, "weights").read_text() for each in (folder, own)]
        assert texts[0] == texts[1] == repr(result.best.metrics["eval/loss"])


STUDY = """
def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    depth = trial.suggest_int("depth", 1, 9, log=True)
    trial.set_user_attr("square", x * x)
    trial.set_constraint("room", x - 5)  # at most 0
    for step in range(3):
        trial.report(x * x / (step + 1) + depth / 3, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return {"a": 0.1, "b": 0.2}[kind] * depth + x / 7

DIRECTIONS = ["DIRECTION"]
study = optuna.create_study(directions=DIRECTIONS, sampler=optuna.samplers.RandomSampler(3))
for point in POINTS:
    study.enqueue_trial(point)
study.optimize(objective, 3, 600, callbacks=[lambda study, trial: None])
"""
POINTS = [dict(x=1.0, kind="a", depth=3), dict(x=-2.0, kind="b", depth=2), dict(x=6.0, kind="b", depth=9)]
PARAMS = '{"x": tune.uniform(-10, 10), "kind": tune.choice(["a", "b"]), "depth": tune.lograndint(1, 10)}'


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_script_of_optuna(search_here, tmp_path, direction):
    """The third setting, the best of a maximizing study, violates a constraint."""
    text = f"POINTS = {POINTS}" + STUDY.replace('DIRECTION"', f'{direction}"')
    script = (
        f"from tuner import script, tune\nscript({PARAMS}, points={POINTS})\nfrom tuner.integrations import optuna\n"
    )
    (tmp_path / "study.py").write_text(script + text)
    exec(compile(text, "study", "exec"), names := {"optuna": optuna})
    done = search_here(str(tmp_path / "study.py"))
    assert done.code == 0, done.out + done.err
    assert "NOTE: not used of the study: sampler, timeout, callbacks, enqueue_trial; see docs/moving.md" in done.out
    study = names["study"]
    for theirs, ours in zip(study.trials, done.record.trials, strict=True):
        *steps, last = [each.metrics for each in ours.reports]
        assert ours.config == theirs.params
        assert [each["intermediate_value"] for each in steps] == [*theirs.intermediate_values.values()]
        assert last["value"] == theirs.value and last["room"] == theirs.constraints["room"]
        assert last["user_attrs_square"] == theirs.user_attrs["square"]
    best = json.loads((done.folder / "best" / "config.json").read_text())
    assert best["config"] == study.best_params != POINTS[2] and int(best["trial"]) == study.best_trial.number


def test_what_a_search_does_not_use_of_a_study_is_said(tmp_path):
    from tuner.spec.script_text import of_study

    head = "def objective(trial):\n    return 1\n"
    for call, texts in {
        "optuna.create_study().optimize(objective, n_trials=5)": [],
        "optuna.create_study(study_name='n', sampler=None).optimize(objective, 5, n_jobs=1)": [],
        "optuna.create_study(storage=url, pruner=Pruner()).optimize(objective, 5, None, 2)":
            ["not used of the study: storage, pruner, n_jobs; see docs/moving.md"],
        "study = optuna.create_study(sampler=TPESampler(constraints_func=of))\nstudy.optimize(objective, args.n)": [
            "not used of the study: sampler; see docs/moving.md",
            "n_trials=args.n is known only when the script runs: --num-samples is the number of trials",
            "constraints_func is not used, so the answer may violate it: call trial.set_constraint(name, value)",
        ],
    }.items():  # fmt: skip
        found = of_study(head + call, tmp_path)
        assert found["notes"] == texts, call
        assert found.get("num_samples") == (None if "args.n" in call else 5)


@pytest.mark.parametrize("end", ["return None", "raise optuna.TrialPruned"])
def test_an_objective_without_a_value_is_told(search_here, tmp_path, end):
    text = f"""
from tuner import script, tune
from tuner.integrations import optuna
script({{"x": tune.uniform(0, 1)}})
def objective(trial):
    trial.suggest_float("x", 0, 1)
    {end}
optuna.create_study().optimize(objective, n_trials=1)
"""
    (tmp_path / "none.py").write_text(text)
    done = search_here(str(tmp_path / "none.py"))
    assert "the objective ends without a value: it returns None, or prunes before it reports" in done.out + done.err


LIGHTNING_SCRIPT = """
import argparse, json
import lightning as L
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
options = parser.parse_args()
L.seed_everything(7, workers=True)
class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    def step(self, batch, name):
        self.log(name, loss := torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))
        return loss
    def training_step(self, batch, i):
        return self.step(batch, "train_loss")
    def validation_step(self, batch, i):
        self.step(batch, "val_loss")
    def test_step(self, batch, i):
        self.step(batch, "test_loss")
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=options.lr)
values = []
class Keep(L.Callback):
    def on_validation_end(self, trainer, module):
        values.append(trainer.callback_metrics["val_loss"].item())
x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) + torch.randn(64, 1))
def load(shuffle):
    return torch.utils.data.DataLoader(data, 16, shuffle=shuffle)
best = L.pytorch.callbacks.ModelCheckpoint(monitor="val_loss", dirpath="own", filename="best", save_last=True)
trainer = L.Trainer(max_epochs=4, callbacks=[best, Keep()], accelerator="cpu", num_sanity_val_steps=0)
model = Line()
trainer.fit(model, load(True), load(False))
tested = [trainer.test(model, load(False), ckpt_path=path)[0]["test_loss"] for path in ("best", "last")]
epoch = torch.load("own/best.ckpt", weights_only=False)["epoch"]
json.dump({"values": values, "tested": tested, "epoch": epoch + 1}, open("out.json", "w"))
torch.save(torch.load("own/best.ckpt", weights_only=False)["state_dict"], "best.pt")
"""
HUGGING_FACE_SCRIPT = """
import json
import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
set_seed(args.seed)
class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True) + torch.randn(64, 1)
data = [{"x": a, "labels": b} for a, b in zip(x, y)]
trainer = Trainer(model=Line(), args=args, train_dataset=data, eval_dataset=data)
trainer.train()
values = [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each]
tested = [trainer.evaluate()["eval_loss"]]
json.dump({"values": values, "tested": tested, "epoch": values.index(min(values)) + 1}, open("out.json", "w"))
trainer.save_model()
torch.save(trainer.model.state_dict(), "best.pt")
"""
HUGGING_FACE_ARGUMENTS = {
    "output_dir": "out", "eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True,
    "num_train_epochs": 4, "optim": "sgd", "use_cpu": True, "seed": 5, "lr_scheduler_type": "constant",
}  # fmt: skip
FRAMEWORKS = {
    "lightning": (LIGHTNING_SCRIPT, "lr", {}, [0.2, 0.01], "val_loss"),
    "transformers": (HUGGING_FACE_SCRIPT, "learning_rate", HUGGING_FACE_ARGUMENTS, [0.6, 0.01], "eval_loss"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("lightning", marks=LIGHTNING), pytest.param("transformers", marks=HUGGING_FACE)]
)
def test_a_script_of_a_framework(search, tmp_path, monkeypatch, name):
    """Also the best and the last checkpoint that the script itself loads after the training are those of both."""
    import torch

    text, parameter, arguments, rates, metric = FRAMEWORKS[name]
    (project := tmp_path / "project").mkdir()
    plain = {}
    for rate in rates:
        (folder := tmp_path / str(rate)).mkdir()
        (folder / "train.py").write_text(text)
        words = [f"--{key}={value}" for key, value in {**arguments, parameter: rate}.items()]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, "train.py", *words], cwd=folder, env=environment, check=True, timeout=100)
        plain[rate] = json.loads((folder / "out.json").read_text())
    best = min(rates, key=lambda rate: min(plain[rate]["values"]))
    assert plain[best]["epoch"] < 4 and len(plain[best]["values"]) == 4  # else nothing tells the best from the last
    params = f"{arguments} | {{{parameter!r}: tune.grid_search({rates})}}"
    script = f"from tuner import script, tune\nscript({params}, metric={metric!r})"
    (project / "train.py").write_text(script + text)
    monkeypatch.chdir(project)
    done = search(str(project / "train.py"), "--searcher", "grid", "--max-concurrent-trials", "1")
    assert done.code == 0, done.out + done.err
    for trial in done.record.trials:
        assert [each.metrics[metric] for each in trial.reports] == plain[trial.config[parameter]]["values"]
    answer = json.loads((done.folder / "best" / "config.json").read_text())
    assert answer["config"][parameter] == best
    assert json.loads((done.folder / "best/files/out.json").read_text()) == plain[best]
    theirs = torch.load(tmp_path / str(best) / "best.pt")
    if name == "lightning":
        ours = torch.load(done.folder / "best/checkpoint/lightning.ckpt", weights_only=False)["state_dict"]
    else:
        from safetensors.torch import load_file

        ours = load_file(done.folder / "best/checkpoint/model.safetensors")
        left = done.folder / "best/files/out/model.safetensors"  # what save_model() wrote
        assert left.read_bytes() == (tmp_path / str(best) / "out/model.safetensors").read_bytes()
    for state in (ours, torch.load(done.folder / "best/files/best.pt")):
        assert state.keys() == theirs.keys() and all(torch.equal(state[key], theirs[key]) for key in theirs)
