"""The rules again, in lines that share nothing with `tuner.core.rules`: what a journal's decisions must be.

The losses of a trial are its values with the sign that makes smaller ones better.
"""

import math
from collections import defaultdict, deque

import numpy as np

from tuner.core.rules.rule import Brackets


class Fifo:
    """A rule: `judge` returns (action, rung, cutoff as a loss) or None, and the decisions on others that follow."""

    def __init__(self, e, most):
        self.e, self.most, self.factor, self.grace = e, most, e.reduction_factor, e.grace_period
        self.waiting = {}

    def rungs(self, bracket):
        num = math.floor(math.log(self.most / self.grace) / math.log(self.factor) - bracket + 1)
        return [self.grace * self.factor ** (bracket + k) for k in range(num)]

    def added(self, trial):
        pass

    def judge(self, trial, epoch, loss, bracket):
        return None, []

    def ended(self, trial, epoch, loss, bracket):
        return []

    def finishes(self, trial):
        self.waiting.pop(trial, None)


class Asha(Fifo):
    def __init__(self, e, most):
        super().__init__(e, most)
        self.seen, self.calls = defaultdict(lambda: defaultdict(dict)), []  # bracket -> rung -> trial -> loss

    def judge(self, trial, epoch, loss, bracket):
        self.calls.append((trial, epoch, loss, bracket))
        seen = self.seen[bracket]
        rung = max((r for r in self.rungs(bracket) if r <= epoch and trial not in seen[r]), default=None)
        if rung is None:
            return None, []
        losses = list(seen[rung].values())
        seen[rung][trial] = loss
        if rung >= self.most:
            return None, []
        # Of rewards, as Ray has it: between the two smallest numbers, it is not the same as of losses.
        cutoff = -float(np.percentile([-loss for loss in losses], (1 - 1 / self.factor) * 100)) if losses else None
        return ("stop" if losses and loss > cutoff else "continue", rung, cutoff), []

    def ended(self, trial, epoch, loss, bracket):
        if loss is not None:
            self.judge(trial, epoch, loss, bracket)
        return []

    def learns(self, epochs):
        self.most, self.grace = epochs, min(self.e.grace_period, epochs)
        calls, self.calls = self.calls, []
        self.seen.clear()
        for call in calls:
            self.judge(*call)


class Promotion(Fifo):
    def __init__(self, e, most):
        super().__init__(e, most)
        self.arrived, self.reached, self.completed = defaultdict(list), {}, set()

    def added(self, trial):
        self.completed.discard(trial)

    def judge(self, trial, epoch, loss, bracket):
        self.waiting.pop(trial, None)
        reached = sum(r <= epoch for r in self.rungs(bracket) if r < self.most)
        if reached <= self.reached.get(trial, 0):
            return None, []
        self.reached[trial], rung = reached, self.rungs(bracket)[reached - 1]
        there = self.arrived[bracket, rung]
        there.append((loss, len(there), trial))
        best = sorted(there)[: int(len(there) / self.factor)]
        self.waiting[trial] = bracket, rung
        promoted = next((t for _, _, t in sorted(there) if self.waiting.get(t) == (bracket, rung)), None)
        promoted = promoted if promoted in [t for _, _, t in best] else None
        self.waiting.pop(promoted, None)
        own = "continue" if promoted == trial else "pause"
        return (own, rung, best[-1][0] if best else None), [(promoted, "continue")] * (promoted not in (None, trial))

    def ended(self, trial, epoch, loss, bracket):
        self.waiting.pop(trial, None)
        self.completed |= {trial} if loss is not None else set()
        return []

    def idle(self):
        """When nothing runs: all stop, or the best of the highest rung goes on."""
        if self.completed:
            decided = [(trial, "stop") for trial in self.waiting]
        else:
            highest = max(rung for _, rung in self.waiting.values())
            own = {trial: place for trial, place in self.waiting.items() if place[1] == highest}
            values = {t: loss for place in own.values() for loss, _, t in self.arrived[place]}
            decided = [(min(own, key=lambda trial: values[trial]), "continue")]
        for trial, _ in decided:
            del self.waiting[trial]
        return decided


class Median(Fifo):
    def __init__(self, e, most):
        super().__init__(e, most)
        self.values, self.best = defaultdict(list), {}  # trial -> [(epoch, loss)]

    def judge(self, trial, epoch, loss, bracket):
        self.best[trial] = min(loss, self.best.get(trial, math.inf))
        if epoch < self.grace:
            return None, []
        means = [self.mean(other, epoch) for other in self.values if other != trial]
        means = [mean for mean in means if mean is not None]
        self.values[trial].append((epoch, loss))
        median = float(np.median(means)) if len(means) >= 3 else None
        return ("stop" if median is not None and self.best[trial] > median else "continue", epoch, median), []

    def mean(self, trial, epoch):
        values = self.values[trial]
        if not values or values[-1][0] < epoch or values[0][0] > epoch:
            return None
        return float(np.mean([loss for at, loss in values if at <= epoch]))

    def ended(self, trial, epoch, loss, bracket):
        if loss is not None and epoch >= self.grace:
            self.values[trial].append((epoch, loss))
        return []


class HyperBand(Fifo):
    def __init__(self, e, most):
        super().__init__(e, most)
        num = round(math.log(most) / math.log(self.factor)) + 1
        shapes = [[math.ceil(num / (s + 1) * self.factor**s), int(most * self.factor ** (-s)), s] for s in range(num)]
        self.shapes, self.brackets, self.of = [shape for shape in shapes if shape[1]], [], {}

    def added(self, trial):
        if not self.brackets or len(self.brackets[-1][3]) == self.brackets[-1][0]:
            self.brackets.append([*self.shapes[len(self.brackets) % len(self.shapes)], {}, set()])
        self.of[trial] = self.brackets[-1]
        self.of[trial][3][trial] = math.inf

    def judge(self, trial, epoch, loss, bracket):
        own = self.of[trial]
        _, rung, _, live, waiting = own
        if epoch < rung:
            return None, []
        live[trial] = loss
        waiting.add(trial)
        self.waiting[trial] = rung
        decided = dict(self.settle(own, trial))
        return (decided.pop(trial, "pause"), rung, ...), list(decided.items())

    def ended(self, trial, epoch, loss, bracket):
        own = self.of[trial]
        own[3].pop(trial, None)
        own[4].discard(trial)
        self.waiting.pop(trial, None)
        return self.settle(own, None)

    def settle(self, own, reported):
        size, rung, halvings, live, waiting = own
        if not live.keys() <= waiting:
            return []
        order = sorted(live, key=lambda trial: -live[trial])  # the worst first
        if halvings:
            own[:3] = math.ceil(size / self.factor), int(min(rung * self.factor, self.most)), halvings - 1
            stopped = order[: -own[0]] if len(order) > own[0] else []
            waiting.clear()
        else:
            order = stopped = [trial for trial in live if trial not in self.waiting or self.waiting[trial]]
            own[4] = set(live)
        for trial in order:
            self.waiting.pop(trial, None)
        for trial in stopped:
            if halvings or trial != reported:
                live.pop(trial)
                own[4].discard(trial)
            else:
                self.waiting[trial] = 0  # it leaves after its end
        return [(trial, "stop" if trial in stopped else "continue") for trial in order]


RULES = {"fifo": Fifo, "asha": Asha, "asha-promotion": Promotion, "median": Median, "hyperband": HyperBand}


def check_decisions(events, e, saves):
    """Each report has the decision that the rule makes of the reports before it, and no decision is made twice."""
    most = max(
        event.get("max_epochs", 0) for event in events if event["event"] in ("experiment_started", "experiment_resumed")
    )
    learned = any(event["event"] == "length_learned" for event in events)
    scheduler = "asha" if e.scheduler == "asha-promotion" and not saves else e.scheduler
    if (
        scheduler == "pbt"
        or e.aim.several
        or (learned and (scheduler == "asha-promotion" or most > first_most(events)))
    ):
        return
    rule, sign, session_most = RULES[scheduler](e, most), e.compared.sign, 0
    expected, last, brackets, confirms, status = defaultdict(deque), {}, defaultdict(int), set(), {}
    finishing, running, stopping, paused, done_early = set(), set(), set(), set(), set()
    for event in events:
        if event["event"] == "trial_suggested" and e.brackets > 1:
            brackets[event["trial"]] = Brackets(e, e.brackets).of(int(event["trial"]))

    def ends(event):
        trial, (epoch, loss) = event["trial"], last.get(event["trial"], (0, None))
        running.discard(trial)
        stopping.discard(trial)
        was_waiting = trial in paused
        status[trial] = event["status"]
        if event["status"] == "interrupted" or trial in confirms or was_waiting:
            return
        failed = event["status"] == "failed"
        for other, action in rule.ended(trial, epoch, None if failed else loss, brackets[trial]):
            expected[other].append((action, ..., ...))

    for number, event in enumerate(events):
        kind, trial = event["event"], event.get("trial")
        if kind in ("experiment_started", "experiment_resumed"):
            session_most = event["max_epochs"]
            running &= stopping  # their ends follow
            again = [t for t, state in status.items() if state == "completed" and last[t][0] < session_most]
            before = events[number - 1].get("state") if number else ""
            again += [t for t, state in status.items() if state == "failed" and before == "failed"]
            for other in again:
                if other not in confirms and any(
                    e["event"] == "trial_started" and e["trial"] == other for e in events[number:]
                ):
                    rule.added(other)
        elif kind == "trial_suggested":
            if "confirms" in event:
                confirms.add(trial)
            else:
                rule.added(trial)
        elif kind == "trial_started":
            running.add(trial)
            paused.discard(trial)
            status[trial] = "running"
        elif kind == "length_learned" and hasattr(rule, "learns"):
            rule.learns(event["epochs"])
        elif kind == "report":
            assert not expected[trial], f"line {number}: trial {trial} has no decision: {expected[trial]}"
            epoch, loss = event["epoch"], event["metrics"].get(e.compared.metric)
            if epoch <= last.get(trial, (0,))[0]:
                continue
            last[trial] = epoch, None
            if loss is None or not math.isfinite(loss):
                expected[trial].append(("stop", None, None))
            elif e.aim.broken_by(event["metrics"], at="start"):
                expected[trial].append(("stop", None, None))
            else:
                last[trial] = epoch, sign * loss
                if epoch >= session_most:
                    expected[trial].append(("stop", None, None))
                elif trial not in confirms and trial not in finishing:
                    own, others = rule.judge(trial, epoch, sign * loss, brackets[trial])
                    expected[trial] += [own] if own else []
                    for other, action in others:
                        expected[other].append((action, ..., ...))
        elif kind == "decision":
            if event.get("budget") and event["action"] == "continue":
                finishing.add(trial)
                paused.discard(trial)
                rule.finishes(trial)
                running.add(trial)
                continue
            if not expected[trial]:
                # It follows from an end, which is journaled after it, or from the idleness of all others.
                end = next(
                    (
                        (n, each)
                        for n, each in enumerate(events[number:], number)
                        if each["event"] == "trial_ended"
                        and n not in done_early
                        and each["trial"] in running
                        and each["status"] != "interrupted"
                    ),
                    None,
                )
                if end and scheduler == "hyperband" and running:
                    done_early.add(end[0])
                    ends(end[1])
                elif hasattr(rule, "idle") and rule.waiting:
                    assert not running - confirms, f"line {number}: {sorted(running)} run, so that nothing is idle"
                    for other, action in rule.idle():
                        expected[other].append((action, ..., ...))
            assert expected[trial], f"line {number}: a decision on trial {trial} that no rule makes: {event}"
            action, rung, cutoff = expected[trial].popleft()
            own = event["cutoff"] if event["cutoff"] is None else sign * event["cutoff"]
            is_held = event.get("budget") and (action, event["action"]) == ("continue", "pause")
            assert event["action"] == action or is_held, f"line {number}: {event} instead of {action}"
            assert rung is ... or event["rung"] == rung, f"line {number}: {event} at rung {rung}"
            is_near = None not in (own, cutoff) and cutoff is not ... and math.isclose(own, cutoff, rel_tol=1e-12)
            assert cutoff is ... or own == cutoff or is_near, f"line {number}: {event} instead of the cutoff {cutoff}"
            if event["action"] == "stop":
                stopping.add(trial)
            elif event["action"] == "pause":
                running.discard(trial)
                paused.add(trial)
            elif event["action"] == "continue":
                paused.discard(trial)
        elif kind == "trial_ended" and number not in done_early:
            ends(event)
    left = {trial: list(each) for trial, each in expected.items() if each}
    assert not left, f"decisions are missing: {left}"


def first_most(events):
    return events[0]["max_epochs"]
