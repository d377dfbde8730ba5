"""A space whose trials do nothing but report: what is left is the service's own time."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune

from tuner.space import Space

NUM_REPORTS = int(os.environ.get("NUM_REPORTS", "10"))


def without_syncs() -> None:
    """Where NO_SYNC is set, nothing waits for the disk: what the syncs cost is the difference (`benchmarks.scale`)."""
    if os.environ.get("NO_SYNC"):
        os.fsync = lambda handle: None


def report_only(config: dict[str, Any]) -> None:
    """NUM_REPORTS reports, spread over TRIAL_S seconds where that is set, each with a checkpoint where SAVES is set."""
    without_syncs()
    pause_s = float(os.environ.get("TRIAL_S", "0")) / NUM_REPORTS
    for epoch in range(1, NUM_REPORTS + 1):
        if pause_s:
            time.sleep(pause_s)
        if not os.environ.get("SAVES"):
            tune.report({"loss": config["x"] / epoch})
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state").write_bytes(bytes(10_000))
            tune.report({"loss": config["x"] / epoch}, checkpoint=tune.Checkpoint.from_directory(folder))


without_syncs()

space = Space(params={"x": tune.uniform(0, 1)}, train=report_only, metric="loss", max_epochs=NUM_REPORTS)
