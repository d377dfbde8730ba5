"""The searcher `forest`: random settings, and settings for which a random forest predicts a good result.

The forest learns from the best reports of at most MAX_TRIALS trials, also of trials that still train, wait or were
pruned. Under ASHA, a trial trains longer because it was better than the trials that it was compared with. The reports
thus order the trials well although their epochs differ (Salinas et al., "Optimizing hyperparameters with conformal
quantile regression", ICML 2023). A trial's best report is the one that a search's answer counts; it differs from the
last one where curves turn, as when a model overfits. (With constraints or several metrics, the last reports count.)
Failed and diverged trials have a model of their own, `trees.Risk`.
"""

from __future__ import annotations

import math
from importlib import import_module
from threading import Thread

import numpy as np

from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.searchers.improving import PARENTS, Improving
from tuner.tuning.searchers.past import Past, PastModel, Standing
from tuner.tuning.searchers.sampling import SeededSearcher, Setting
from tuner.tuning.searchers.trees import (
    Forest,
    Matrix,
    Risk,
    drawn,
    features,
    no_risk,
    normal_scores,
    promising,
    row_of,
)

# Chosen in simulations with asha-promotion, mostly on surrogate curves; see benchmarks/README.md.
NUM_RANDOM = 10  # trials that must have reported or failed before the first forest is trained
RANDOM_SHARE = 1 / 3  # share of random settings later, because a forest alone repeats what is good after few epochs
PAST_TRIALS = 10  # a past search is asked for as many settings as if it had this many trials among the own ones
MAX_TRIALS = 1000  # maximum number of trials that a forest learns from: half are the best, the others the newest
GROWTH = 1.05  # a new forest is trained after 5 % more reports
# A random setting with a higher probability to fail is passed over for the next one, up to NUM_DRAWN. It may be riskier
# than a model's proposals (MAY_FAIL), since random settings are there to find out what the models do not know.
WILL_FAIL, NUM_DRAWN = 0.5, 16


class ForestSearcher(SeededSearcher):
    """Proposes given points, then random settings until 10 trials have reported or failed; then one in three is random.

    For a proposal that is not random, it draws 500 random settings and one tree of the forest. It proposes the setting
    for which this tree predicts the best result. This is Thompson sampling (Eckles and Kaptein, "Thompson sampling with
    the online bootstrap", 2014). Each tree learns from a bootstrap of trials, so trees disagree where few trials were.
    Settings that will probably fail are left out.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int, past: Past | None = None) -> None:
        super().__init__(experiment, space, first_num_samples, past)
        self._domains = dict(domains.leaves(space.encoded))
        self._features: dict[str, Matrix] = {}  # trial -> its setting as numbers
        self._values: dict[str, Standing] = {}  # trial -> how it ranks among the trials, the smallest first
        self._epochs: dict[str, int] = {}  # trial -> the highest epoch that it reported, at least 1
        self._num_reports = self._num_learnt = 0
        self._forest: Forest | None = None
        self._failed = set[bytes]()  # the features of the settings that failed
        self._risk = no_risk(self._failed)
        self._flat: dict[str, Setting] = {}  # trial -> its setting, if there are constraints or several metrics
        self._losses: dict[str, list[float]] = {}  # trial -> its last value of each metric, as losses
        self._improving: Improving | None = None
        self._parents: list[Setting] = []  # the best trials' settings, by `_improving`
        self._past = PastModel(past, self._domains, self._seed) if past else None

    def _next(self, trial_id: str) -> Setting:
        stream = np.random.default_rng([self._seed, self.num_proposed])
        num, flat = len(self._values), None
        if num >= NUM_RANDOM and self._num_reports >= GROWTH * self._num_learnt:
            self._study(stream)
        if self._improving:
            tried = {row.tobytes() for row in self._features.values()}
            proposed = self._improving.proposed(self._domains, self._parents, tried, self._risk, stream)
            return self._use(trial_id, proposed)
        if (num >= NUM_RANDOM or self._past) and stream.random() >= RANDOM_SHARE:
            if self._past and stream.random() * num < PAST_TRIALS:
                flat = self._from_past(stream)
            if flat is None and self._forest:
                flat = promising(self._domains, self._forest, self._risk, stream)
        if flat is None:
            flat = self._random(trial_id, stream)
        return self._use(trial_id, flat)

    def _random(self, trial_id: str, stream: np.random.Generator) -> Setting:
        """Returns a random setting, or one near the prior; replaces those that will probably fail, up to 15 times."""
        columns = drawn(self._domains, stream, NUM_DRAWN)
        for number in range(len(next(iter(columns.values())))):
            flat = row_of(self._domains, columns, number)
            flat = self._prior.moved(trial_id, flat, stream) if self._prior else flat
            if self._risk.at(self._features_of(flat))[0] <= WILL_FAIL:
                break
        return flat

    def _study(self, stream: np.random.Generator) -> None:
        """Learns from the trials so far which settings fail, and which of the others are good."""
        self._num_learnt = self._num_reports
        newest = sorted(self._values, reverse=True)
        failed = [trial for trial in newest if self._values[trial].failed][: MAX_TRIALS // 2]
        known = list(dict.fromkeys(failed + newest))[:MAX_TRIALS]
        flags = [self._values[trial].failed for trial in known]
        self._risk = Risk(self._matrix(known), flags, int(stream.integers(2**31)), self._failed)
        sound = [trial for trial in self._losses if not self._values[trial].failed]
        self._improving = self._forest = None
        if not self._aim.simple and len(sound) >= NUM_RANDOM:
            self._improving = self._learnt_several(sound, stream)
            self._parents = [self._flat[sound[at]] for at in self._improving.order[:PARENTS]]
        elif self._aim.simple or len(self._losses) < NUM_RANDOM:
            self._forest = self._learnt(stream)

    def _learnt_several(self, trials: list[str], stream: np.random.Generator) -> Improving:
        """Returns models of the trials' metrics and constraints."""
        nan = [math.nan] * len(self._aim.constraints)
        excesses = [[math.nan if e is None else e for e in self._excesses.get(trial, nan)] for trial in trials]
        return Improving(
            self._matrix(trials),
            np.array([self._losses[trial] for trial in trials]),
            np.array(excesses).reshape(len(trials), -1),
            [self._epochs[trial] for trial in trials],
            stream,
        )

    def _from_past(self, stream: np.random.Generator) -> Setting | None:
        assert self._past
        sound = {trial: standing for trial, standing in self._values.items() if not standing.failed}
        known = np.array([self._features[trial] for trial in sound], dtype=np.float32)
        rank = {standing: number for number, standing in enumerate(sorted(sound.values()))}
        return self._past.proposed(stream, known, np.array([rank[each] for each in sound.values()]), self._risk)

    def _use(self, trial_id: str, flat: Setting) -> Setting:
        if not self._aim.simple:
            self._flat[trial_id] = flat
        self._features[trial_id] = self._features_of(flat)[0]
        return super()._use(trial_id, flat)

    def _learnt(self, stream: np.random.Generator) -> Forest | None:
        """Returns a forest that learns the ranks of the trials that did not fail, since one value may be huge."""
        newest = sorted((trial for trial, standing in self._values.items() if not standing.failed), reverse=True)
        best = sorted(newest, key=self._values.__getitem__)[: MAX_TRIALS // 2]
        known = list(dict.fromkeys(best + newest))[:MAX_TRIALS]
        known.sort(key=self._values.__getitem__)
        if not known:
            return None
        # A trial counts once per epoch, so that many short trials do not outweigh few long ones.
        seed, weights = int(stream.integers(2**31)), [self._epochs[trial] for trial in known]
        return Forest(self._matrix(known), normal_scores(len(known)), seed, weights)

    def _features_of(self, flat: Setting) -> Matrix:
        return features(self._domains, {name: [value] for name, value in flat.items()})

    def _matrix(self, trials: list[str]) -> Matrix:
        return np.stack([self._features[trial] for trial in trials])

    def _learn(self, trial_id: str, result: Setting) -> None:
        super()._learn(trial_id, result)
        loss = self._sign * float(result[self._metric])
        self._losses[trial_id] = [goal.sign * float(goal.value(result)) for goal in self._aim.goals]
        known, before = math.isfinite(loss), self._values.get(trial_id)
        standing = Standing(0 if known else 2, 0, loss)
        self._rank(trial_id, result, min(standing, before) if known and before else standing)

    def _note(self, trial_id: str, result: Setting) -> None:
        if trial_id not in self._values or self._values[trial_id].group == 1:
            loss = self._compared.sign * float(self._compared.value(result))
            self._rank(trial_id, result, Standing(1, -int(result["training_iteration"]), loss))

    def _rank(self, trial_id: str, result: Setting, standing: Standing) -> None:
        self._values[trial_id] = standing
        if standing.failed:
            self._failed.add(self._features[trial_id].tobytes())
        self._epochs[trial_id] = max(self._epochs.get(trial_id, 1), int(result["training_iteration"]))
        if not self._num_reports:
            Thread(target=import_module, args=["sklearn.tree"]).start()  # takes 2 s, so it begins at the first report
        self._num_reports += 1
