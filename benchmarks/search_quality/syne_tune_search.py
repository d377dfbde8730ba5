# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "syne-tune==0.16.0",
#   "huggingface-hub==2.4.0",  # ASHA-CQR's imports
#   "statsmodels==0.15.0",
#   "scikit-learn==1.9.1",
#   "xgboost==3.2.0",
# ]
# ///
"""Syne Tune's ASHA, ASHA-CQR and BOHB with their default options, called as its Tuner calls them.

Its own simulator backend would bring a clock of its own; here the schedulers themselves run on the common clock. Its
ASHA stops, and never pauses. A trial at the last epoch is told by `on_trial_complete`, as the Tuner does.

The process serves searches until its standard input ends: it reads requests as JSON lines, and answers each with one.
"""

import json
import math
import os
import sys
import traceback
from datetime import datetime

import numpy as np
from syne_tune import config_space as domains
from syne_tune.backend.trial_status import Trial
from syne_tune.optimizer.baselines import ASHA, ASHACQR, BOHB

KINDS = {"asha": ASHA, "asha-cqr": ASHACQR, "bohb": BOHB}
RANGES = {
    "uniform": domains.uniform,
    "loguniform": domains.loguniform,
    "randint": domains.randint,
    "lograndint": domains.lograndint,
}
WORST = 1e6  # its models refuse values that are not finite; a user would report a large loss instead


class Search:
    def __init__(self, kind, problem):
        space = {name: domain(each) for name, each in problem["space"].items()}
        np.random.seed(problem["seed"] % 2**32)  # a bracket is drawn from numpy's global stream
        self._max_epochs = problem["max_epochs"]
        self._worst = WORST if problem["mode"] == "min" else -WORST
        self._scheduler = KINDS[kind](
            config_space=space,
            metric="value",
            time_attr="epoch",
            max_t=self._max_epochs,
            do_minimize=problem["mode"] == "min",
            random_seed=problem["seed"],
        )
        self._trials = []

    def next(self):
        suggested = self._scheduler.suggest()
        if suggested is None:
            return None
        trial = Trial(len(self._trials), suggested.config, datetime.now())
        self._trials.append(trial)
        self._scheduler.on_trial_add(trial)
        return trial.trial_id, suggested.config

    def report(self, number, epoch, value):
        trial, result = self._trials[number], {"value": value if math.isfinite(value) else self._worst, "epoch": epoch}
        if epoch >= self._max_epochs:
            self._scheduler.on_trial_complete(trial, result)
            return "stop"
        decision = self._scheduler.on_trial_result(trial, result)
        if decision == "STOP":
            self._scheduler.on_trial_remove(trial)
            return "stop"
        return "continue"


def domain(described):
    if described["type"] == "choice":
        return domains.choice(described["values"])
    return RANGES[described["type"]](described["low"], described["high"])


def serve(build):
    """Makes a search (`next`, `report`) from its kind and the problem at `start`, and calls it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not be read as an answer
    search = None
    for line in sys.stdin:
        try:
            request, *values = json.loads(line)
            if request == "start":
                search, answer = build(*values), None
            else:
                answer = getattr(search, request)(*values)
            answers.write(json.dumps({"answer": answer}, default=lambda number: number.item()) + "\n")
        except Exception as error:  # the other side decides what an error ends
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            answers.write(json.dumps({"error": text}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Search)
