# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["smac==2.4.1", "ConfigSpace==1.2.2"]
# ///
"""SMAC's multi-fidelity facade with its default options, by its own ask and tell.

SMAC's HyperBand starts a new bracket where others would wait for a straggler, so it runs asynchronously. Its budgets
are rounded to whole epochs. A diverged training is told as crashed.
"""

import math
import tempfile

from ConfigSpace import Categorical, ConfigurationSpace, Float, Integer
from serve import Staged, serve
from smac import MultiFidelityFacade, Scenario
from smac.runhistory import StatusType, TrialValue


class Search(Staged):
    def __init__(self, kind, problem):
        super().__init__(problem)
        space = ConfigurationSpace(seed=problem["seed"])
        space.add([domain(name, each) for name, each in problem["space"].items()])
        self._values = {name: each.get("values") for name, each in problem["space"].items()}
        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            space,
            deterministic=True,
            min_budget=1,
            max_budget=problem["max_epochs"],
            n_trials=1_000_000,
            seed=problem["seed"] % 2**32,
            output_directory=self._folder.name,
        )
        self._smac = MultiFidelityFacade(scenario, untrained, overwrite=True, logging_level=False)

    def ask(self):
        trial = self._smac.ask()
        setting = {
            name: value if self._values[name] is None else self._values[name][int(value)]
            for name, value in dict(trial.config).items()
        }
        return trial.config, setting, max(1, round(trial.budget)), trial

    def tell(self, trial, loss):
        if math.isfinite(loss):
            self._smac.tell(trial, TrialValue(cost=loss))
        else:
            self._smac.tell(trial, TrialValue(cost=math.inf, status=StatusType.CRASHED))


def untrained(config, seed, budget):
    """The target function, which is never called."""


def domain(name, described):
    kind = described["type"]
    if kind == "choice":
        return Categorical(name, [str(index) for index in range(len(described["values"]))])
    of = Integer if "int" in kind else Float
    return of(name, (described["low"], described["high"]), log=kind.startswith("log"))


if __name__ == "__main__":
    serve(Search)
