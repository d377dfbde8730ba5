"""A network that fits a line, trained by two processes with torch.distributed; random data, nothing is downloaded.

Three lines differ from a script that saves to and resumes from a file: the import of `tune`, `tune.get_checkpoint()` in
place of the file to resume from, and `tune.report` in place of `print`. `train` starts the second process as torchrun
would. The first process is the trial itself, so that the second one ends if the trial is killed.
"""

import json
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from ray import tune
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tuner.space import Space

EPOCHS = 4


def work(rank, meeting, config):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # both processes are on this machine
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(0)
    inputs = torch.randn(512, 8)
    targets = inputs.sum(1, keepdim=True)
    net = nn.Sequential(nn.Linear(8, config["width"]), nn.ReLU(), nn.Linear(config["width"], 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    saved = [{"epoch": 0, "net": net.state_dict(), "optimizer": optimizer.state_dict()}]
    if rank == 0 and (checkpoint := tune.get_checkpoint()):
        with checkpoint.as_directory() as folder:
            saved = [torch.load(f"{folder}/state.pt", weights_only=True)]
    dist.broadcast_object_list(saved)
    net.load_state_dict(saved[0]["net"])
    optimizer.load_state_dict(saved[0]["optimizer"])
    for epoch in range(saved[0]["epoch"], EPOCHS):
        for batch in torch.randperm(448, generator=torch.Generator().manual_seed(epoch)).split(64):
            own = batch[rank::2]
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[own]), targets[own]).backward()
            optimizer.step()
        if rank == 0:
            with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
                loss = nn.functional.mse_loss(net(inputs[448:]), targets[448:])
                state = {"epoch": epoch + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, f"{folder}/state.pt")
                tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


def train(config):
    with tempfile.TemporaryDirectory() as folder:
        second = subprocess.Popen([sys.executable, __file__, f"{folder}/meeting", json.dumps(config)])
        try:
            work(0, f"{folder}/meeting", config)
        finally:  # also when the search stops the trial
            second.kill()
            second.wait()
            dist.destroy_process_group()


if __name__ == "__main__":
    work(1, sys.argv[1], json.loads(sys.argv[2]))

params = {"width": tune.choice([16, 64]), "lr": tune.loguniform(1e-3, 1e-1)}
space = Space(params=params, train=train, max_epochs=EPOCHS, num_samples=4)
