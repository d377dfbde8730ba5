"""Each trial reports which GPUs it sees and when; two run long enough to overlap."""

import os
import time

import ray
from ray import tune

from tuner.space import Space


def train(config):
    for _ in range(2):
        begun = time.time()
        time.sleep(0.5)
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        # Without the variable, CUDA would show all devices.
        ids = range(8) if shown is None else [int(index) for index in shown.split(",") if index]
        code = sum(1 << index for index in ids)
        node = int(ray.get_runtime_context().get_node_id()[:8], 16)
        tune.report({"loss": config["x"], "visible": code, "begun": begun, "ended": time.time(), "on_node": node})


space = Space(params={"x": tune.uniform(0, 1)}, train=train, max_epochs=2)
