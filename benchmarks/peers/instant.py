"""A space whose trials do nothing but report: what is left is the service's own time."""

from __future__ import annotations

import os
import time
from typing import Any

from ray import tune

from tuner.space import Space

NUM_REPORTS = int(os.environ.get("NUM_REPORTS", "10"))


def report_only(config: dict[str, Any]) -> None:
    """NUM_REPORTS reports, spread over TRIAL_S seconds where that is set."""
    pause_s = float(os.environ.get("TRIAL_S", "0")) / NUM_REPORTS
    for epoch in range(1, NUM_REPORTS + 1):
        if pause_s:
            time.sleep(pause_s)
        tune.report({"loss": config["x"] / epoch})


space = Space(params={"x": tune.uniform(0, 1)}, train=report_only, metric="loss", max_epochs=NUM_REPORTS)
