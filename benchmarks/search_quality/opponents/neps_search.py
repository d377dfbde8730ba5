# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["neural-pipeline-search==0.17.0"]
# ///
"""NePS' promoting ASHA and asynchronous HyperBand with their default options, by its own ask and tell.

NePS asks for a setting's loss after a number of epochs. A diverged training is told as an error, as its runtime does
with a function that raises one. Its rungs count trials that still train, so it may promote one of these: that trial
then continues to the next rung without a pause, because a trial cannot train twice at once.
"""

import math
import random

import neps
import numpy as np
import torch
from serve import Staged, serve


class Search(Staged):
    def __init__(self, kind, problem):
        super().__init__(problem)
        seed = problem["seed"] % 2**32
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)  # NePS draws from the global streams
        parameters = {name: domain(each) for name, each in problem["space"].items()}
        parameters["epochs"] = neps.IntegerFidelity(lower=1, upper=problem["max_epochs"])
        space = type("Space", (neps.PipelineSpace,), parameters)()
        self._neps = neps.AskAndTell(optimizer=getattr(neps.algorithms, kind)(space))

    def ask(self):
        trial = self._neps.ask()
        setting = dict(trial.config)
        return trial.id.split("_")[0], setting, int(setting.pop("epochs")), trial.id

    def tell(self, identity, loss):
        self._neps.tell(identity, loss if math.isfinite(loss) else ValueError("the training diverged"))


def domain(described):
    if described["type"] == "choice":
        return neps.Categorical(choices=tuple(described["values"]))
    of = neps.Integer if "int" in described["type"] else neps.Float
    return of(lower=described["low"], upper=described["high"], log=described["type"].startswith("log"))


if __name__ == "__main__":
    serve(Search)
