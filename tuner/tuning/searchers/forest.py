"""The searcher `forest`: random settings, and settings for which a random forest predicts a good result.

The forest learns from the last reports of at most MOST_TRIALS trials, also of trials that still train, wait or were
pruned. A failed or diverged trial counts as infinitely bad. Under ASHA, a trial trains longer because it was better
than the trials that it was compared with. The last reports thus order the trials well although their epochs differ
(Salinas et al., "Optimizing hyperparameters with conformal quantile regression", ICML 2023).
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
from tuner.tuning.searchers.trees import Forest, Matrix, drawn, features, normal_scores, promising, row_of

# Chosen in simulations with asha-promotion, mostly on surrogate curves; see benchmarks/README.md.
NUM_RANDOM = 10  # trials that must have reported or failed before the first forest is trained
RANDOM_SHARE = 1 / 3  # share of random settings later, because a forest alone repeats what is good after few epochs
PAST_TRIALS = 10  # a past search is asked for as many settings as if it had this many trials among the own ones
MOST_TRIALS = 1000  # maximum number of trials that a forest learns from: half are the best, the others the newest
GROWTH = 1.05  # a new forest is trained after 5 % more reports


class ForestSearcher(SeededSearcher):
    """Proposes given points, then random settings until 10 trials have reported or failed; then one in three is random.

    For a proposal that is not random, it draws 500 random settings and one tree of the forest. It proposes the setting
    for which this tree predicts the best result. This is Thompson sampling (Eckles and Kaptein, "Thompson sampling with
    the online bootstrap", 2014). Each tree learns from a bootstrap of trials, so trees disagree where few trials were.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int, past: Past | None = None) -> None:
        super().__init__(experiment, space, first_num_samples, past)
        self._domains = dict(domains.leaves(space.encoded))
        self._features: dict[str, Matrix] = {}  # trial -> its setting as numbers
        self._values: dict[str, Standing] = {}  # trial -> how it ranks among the trials, the smallest first
        self._epochs: dict[str, int] = {}  # trial -> the highest epoch that it reported, at least 1
        self._num_reports = self._num_learnt = 0
        self._forest: Forest | None = None
        self._flat: dict[str, Setting] = {}  # trial -> its setting, if there are constraints or several metrics
        self._losses: dict[str, list[float]] = {}  # trial -> its last value of each metric, as losses
        self._improving: Improving | None = None
        self._past = PastModel(past, self._domains, self._seed) if past else None

    def _next(self, trial_id: str) -> Setting:
        stream = np.random.default_rng([self._seed, self.num_proposed])
        num, flat = len(self._values), None
        if not self._aim.simple and len(self._losses) >= NUM_RANDOM:
            return self._use(trial_id, self._improved(stream))
        if (num >= NUM_RANDOM or self._past) and stream.random() >= RANDOM_SHARE:
            if self._past and stream.random() * num < PAST_TRIALS:
                flat = self._from_past(stream)
            if flat is None and num >= NUM_RANDOM:
                flat = self._from_own(stream)
        if flat is None:
            flat = row_of(self._domains, drawn(self._domains, stream, 2), 0)
            flat = self._prior.moved(trial_id, flat, stream) if self._prior else flat
        return self._use(trial_id, flat)

    def _from_own(self, stream: np.random.Generator) -> Setting:
        if self._forest is None or self._num_reports >= GROWTH * self._num_learnt:
            self._forest = self._learnt(stream)
        return promising(self._domains, self._forest, stream)

    def _improved(self, stream: np.random.Generator) -> Setting:
        """Returns a setting that promises to improve on the trials by several metrics, or within the constraints."""
        trials = list(self._losses)
        if self._improving is None or self._num_reports >= GROWTH * self._num_learnt:
            self._num_learnt = self._num_reports
            nan = [math.nan] * len(self._aim.constraints)
            excesses = [[math.nan if e is None else e for e in self._excesses.get(trial, nan)] for trial in trials]
            self._improving = Improving(
                np.stack([self._features[trial] for trial in trials]),
                np.array([self._losses[trial] for trial in trials]),
                np.array(excesses).reshape(len(trials), -1),
                [self._weight(trial) for trial in trials],
                stream,
            )
        parents = [self._flat[trials[at]] for at in self._improving.order[:PARENTS]]
        tried = {row.tobytes() for row in self._features.values()}
        return self._improving.proposed(self._domains, parents, tried, stream)

    def _from_past(self, stream: np.random.Generator) -> Setting | None:
        assert self._past
        known = np.array([self._features[trial] for trial in self._values], dtype=np.float32)
        rank = {standing: number for number, standing in enumerate(sorted(self._values.values()))}
        return self._past.proposed(stream, known, np.array([rank[standing] for standing in self._values.values()]))

    def _use(self, trial_id: str, flat: Setting) -> Setting:
        if not self._aim.simple:
            self._flat[trial_id] = flat
        self._features[trial_id] = features(self._domains, {name: [value] for name, value in flat.items()})[0]
        return super()._use(trial_id, flat)

    def _learnt(self, stream: np.random.Generator) -> Forest:
        """Returns a forest that learns the trials' ranks, since a diverged value would outweigh all other values."""
        self._num_learnt = self._num_reports
        newest = sorted(self._values, reverse=True)
        best = sorted(newest, key=self._values.__getitem__)[: MOST_TRIALS // 2]
        known = list(dict.fromkeys(best + newest))[:MOST_TRIALS]
        known.sort(key=self._values.__getitem__)
        seed, weights = int(stream.integers(2**31)), [self._weight(trial) for trial in known]
        return Forest(np.stack([self._features[trial] for trial in known]), normal_scores(len(known)), seed, weights)

    def _weight(self, trial: str) -> int:
        """Returns how often a trial counts: once per epoch, so that many short trials do not outweigh few long ones."""
        # The result of a diverged or failed trial is as certain as that of a trial that trained to the end.
        return self._epochs[trial] if math.isfinite(self._values[trial].loss) else max(self._epochs.values())

    def _learn(self, trial_id: str, result: Setting) -> None:
        super()._learn(trial_id, result)
        loss = self._sign * float(result[self._metric])
        self._losses[trial_id] = [goal.sign * float(goal.value(result)) for goal in self._aim.goals]
        self._rank(trial_id, result, Standing(0 if math.isfinite(loss) else 2, 0, loss))

    def _note(self, trial_id: str, result: Setting) -> None:
        if trial_id not in self._values or self._values[trial_id].group == 1:
            loss = self._compared.sign * float(self._compared.value(result))
            self._rank(trial_id, result, Standing(1, -int(result["training_iteration"]), loss))

    def _rank(self, trial_id: str, result: Setting, standing: Standing) -> None:
        self._values[trial_id] = standing
        self._epochs[trial_id] = max(self._epochs.get(trial_id, 1), int(result["training_iteration"]))
        if not self._num_reports:
            Thread(target=import_module, args=["sklearn.tree"]).start()  # takes 2 s, so it begins at the first report
        self._num_reports += 1
