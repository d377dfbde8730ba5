"""The world of a simulated search (`simulating.py`): what the seed chooses, clock, disk, nodes and other drivers."""

import errno
import json
import math
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from killing import SPACES

from tuner.errors import RequestError
from tuner.spec.constraints import aim_of
from tuner.spec.experiment import PAIRS
from tuner.spec.spaces import find_space
from tuner.tuning.call import SearchCall
from tuner.tuning.resume.loading import load_resumed

NAME = "simulated"
SPACE = find_space(str(SPACES / "tiny.py"))
FUNCTION = replace(SPACE, space=replace(SPACE.space, task=None, train=lambda config: None, mutable=("lr",)))
SEARCHERS = ["random"] * 30 + ["grid", "refine", "optuna"] * 3 + ["forest", "hyperopt"]  # the last two take seconds
HOUR = 3600.0
MOST_TICKS = 20_000  # of one session; the longest take 2,000


class Killed(BaseException):
    """The driver ends here: nothing catches it, and nothing is written after it."""


@dataclass
class Plan:
    """One search and its troubles.

    Attributes:
        exact: whether nothing but the driver fails and one trial runs at a time: then no kill may change the outcome.
        phases: the options of the search, then those that a resume of the finished search changes.
        stops: the ticks after which a session ends, and how: killed, powerless or interrupted.
        odds: how likely a trouble is at each chance that it has.
    """

    seed: int
    exact: bool
    phases: list[dict]
    concurrent: int
    stops: list[tuple[str, int]]
    odds: dict[str, float]
    values: str
    is_task: bool
    saves: bool
    nodes: int

    @property
    def aim(self):
        first = self.phases[0]
        return aim_of(first.get("metric", "loss"), first["mode"], first.get("constraint", ()))

    def __str__(self):
        phases = "; then ".join(" ".join(f"{k}={v}" for k, v in phase.items()) for phase in self.phases)
        stops = ", ".join(f"{how} at {tick}" for how, tick in self.stops) or "none"
        odds = ", ".join(f"{name} {odds:.3g}" for name, odds in self.odds.items() if odds) or "none"
        kind = f"{'a task' if self.is_task else 'a function'}, {'' if self.saves else 'no '}checkpoints"
        return (
            f"seed {self.seed}{' (exact)' * self.exact}: {phases}\n  {kind}, {self.values} values, "
            f"{self.concurrent} at a time, {self.nodes} nodes; stops: {stops}\n  troubles: {odds}"
        )


def plan_of(seed):
    chance = random.Random(f"plan {seed}")
    draw, odds = chance.choice, lambda likely, most: chance.random() * most if chance.random() < likely else 0.0
    exact = chance.random() < 0.4
    searcher, scheduler = draw(SEARCHERS), ""
    while scheduler not in PAIRS[searcher] or scheduler == "bohb":
        scheduler = draw(["asha", "asha", "asha-promotion", "asha-promotion", "hyperband", "median", "pbt", "fifo"])
    most = chance.randint(1, 9)
    options = {"searcher": searcher, "scheduler": scheduler, "seed": chance.randint(0, 99), "max_epochs": most}
    options |= {"num_samples": chance.randint(1, 12), "mode": draw(["min", "max"])}
    if scheduler == "pbt":
        options |= {"num_samples": chance.randint(2, 6), "perturbation_interval": chance.randint(1, 3)}
    if scheduler in ("asha", "asha-promotion", "median"):
        options["grace_period"] = chance.randint(1, min(3, most))
    if scheduler in ("asha", "asha-promotion", "hyperband"):
        options["reduction_factor"] = draw([2, 2, 3, 2.5, 4])
    if scheduler == "asha-promotion" and chance.random() < 0.2 and most >= 4 * options["grace_period"]:
        options["brackets"] = 2
    several, limited = chance.random() < 0.1, chance.random() < 0.15
    if several and scheduler in ("asha", "asha-promotion", "fifo") and searcher in ("random", "forest"):
        options |= {"metric": ("loss", "accuracy"), "mode": ("min", "max")}
    if limited and scheduler != "pbt" and searcher not in ("hyperopt", "refine"):
        options["constraint"] = (f"accuracy >= 0.2{draw(['', ' at start'])}",)
    if chance.random() < 0.25 and scheduler != "pbt" and "metric" not in options:
        options |= {"confirm": chance.randint(1, 2), "confirm_seeds": 2}
    if chance.random() < 0.3 and scheduler != "pbt":
        kinds = {"epoch_budget": chance.randint(3, 60), "time_budget": f"{chance.randint(1, 90)}m", "cpu_hours": 0.5}
        name = "epoch_budget" if exact else draw(list(kinds))
        options[name] = kinds[name]
    if exact and "confirm" in options and chance.random() < 0.5:  # a half pays for the confirmation
        options |= {"num_samples": 12, "epoch_budget": 4 * options["confirm"] * most + chance.randint(0, 3 * most)}
    if chance.random() < 0.5:
        options["trial_timeout"] = "2h"
    options["max_failures"] = chance.randint(0, 2)
    saves = exact or scheduler in ("pbt", "hyperband") or chance.random() < 0.6
    phases = [options]
    if chance.random() < 0.3 and "epoch_budget" not in options:
        phases.append({"num_samples": options["num_samples"] + chance.randint(1, 4)} if chance.random() < 0.5
                      and scheduler != "pbt" and searcher not in ("grid", "refine") else {})  # fmt: skip
        if scheduler not in ("hyperband", "median") and "brackets" not in options and saves:
            phases[-1]["max_epochs"] = most + chance.randint(0, 4)
        phases = [phase for phase in phases if phase]
    cluster = not exact and chance.random() < 0.3
    stops = [(draw(["kill", "kill", "power", "signal"]), chance.randint(1, draw([20, 80, 200])))
             for _ in range(chance.randint(0, 5))]  # fmt: skip
    troubles = {
        "nan": odds(0.3, 0.1), "jump": odds(0.4, 0.1), "late": odds(0.5, 0.3), "full": odds(0.2, 0.05),
        "second": odds(0.2, 0.02), "waits": odds(0.2, 0.1),
    }  # fmt: skip
    if not exact:
        troubles |= {
            "crash": odds(0.5, 0.08), "error": odds(0.3, 0.05), "missing": odds(0.2, 0.05), "reset": odds(0.2, 0.1),
            "hang": odds(0.4, 0.05) if "trial_timeout" in options else 0.0, "node": 0.05 if cluster else 0.0,
            "returns": odds(0.2, 0.1) if scheduler in ("asha", "asha-promotion", "median", "fifo") else 0.0,
        }  # fmt: skip
    if cluster:
        options |= {"address": "auto", "max_concurrent_trials": chance.randint(0, 3)}
    return Plan(
        seed, exact, phases, 1 if exact else chance.randint(1, 4), stops, troubles,
        draw(["real", "real", "ties", "huge", "rising"]), is_task=chance.random() < 0.6 and saves, saves=saves,
        nodes=chance.randint(1, 3) if cluster else 1,
    )  # fmt: skip


class Clock:
    """In place of the module `time`: `monotonic` only grows; unix time is beside it, and jumps."""

    def __init__(self):
        self.now, self.jumped = 1e5, 1.7e9

    def time(self):
        return self.now + self.jumped

    def monotonic(self):
        return self.now

    perf_counter = monotonic

    def clock_gettime(self, kind):
        return self.time() if kind == time.CLOCK_REALTIME else self.now

    def sleep(self, seconds):
        self.now += seconds

    def __getattr__(self, name):
        return getattr(time, name)


@dataclass
class World:
    """All that lies outside of the driver, and what it has noticed: `broken` is the first invariant that failed."""

    plan: Plan
    folder: Path
    chance: random.Random = None
    clock: Clock = field(default_factory=Clock)
    notes: list[str] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)  # trials
    tick, last, how = 0, math.inf, ""  # of the session: ticks so far; the tick of its end, and how it ends
    dead, is_full = False, 0
    written = b""  # the journal as it must be
    durable, has_lost = 0, False  # bytes of it that survive a loss of power; whether there was one
    acted_upon = 0  # bytes of it up to the last decision that Ray acts upon
    stopper = None
    most_training = 0
    troubled = False

    def __post_init__(self):
        self.chance = random.Random(f"world {self.plan.seed}")
        one = self.plan.concurrent + 1  # more than may be used
        self.slots = {f"node{n}": one if self.plan.nodes == 1 else 2 for n in range(self.plan.nodes)}
        self.leaving = set()

    def happens(self, trouble):
        odds = self.troubled and self.plan.odds.get(trouble)
        return bool(odds) and self.chance.random() < odds

    def note(self, text):
        self.notes.append(f"{self.tick}: {text}")

    def step(self):
        """Each tick may be the driver's last."""
        if self.dead:
            raise Killed
        self.tick += 1
        assert self.tick < MOST_TICKS, f"the search has not ended after {MOST_TICKS} ticks"
        if self.happens("jump"):
            self.clock.jumped += self.chance.uniform(-5, 5) * HOUR
        if self.tick >= self.last:
            self.last = math.inf
            self.note(self.how)
            if self.how == "signal":
                if self.stopper:
                    self.stopper.interrupt("interrupted by SIGINT")
                return
            self.dead = True
            raise Killed
        if self.happens("second"):
            self.second()

    def second(self):
        """Another driver opens the same experiment."""
        with ExitStack() as stack:
            try:
                load_resumed(SearchCall({"results": str(self.folder.parent)}, resume=NAME, space=SPACE), stack)
            except RequestError as error:
                assert "is running this experiment" in str(error), error
                return
        raise AssertionError("a second driver was let in")

    # the journal

    def append(self, original, journal, line):
        self.step()
        self.find_room()
        self.check_journal()
        original(journal, line)
        assert line.endswith(b"\n") and line.count(b"\n") == 1, line
        self.written += line
        if self.acts(json.loads(line)):
            self.acted_upon = len(self.written)
        self.check_journal()
        self.step()

    def acts(self, event):
        """Whether Ray acts upon the event: stops or pauses a trial, or lets a paused one go on."""
        was = self.paused & {event.get("trial")}
        if event["event"] in ("decision", "trial_started"):
            self.paused -= was
        if event["event"] == "decision" and event["action"] == "pause":
            self.paused.add(event["trial"])
        return event["event"] == "decision" and (event["action"] != "continue" or bool(was))

    def check_journal(self):
        now = (self.folder / "journal.jsonl").read_bytes()
        assert now == self.written, "the journal is not what was written to it"

    def check_synced(self):
        """What stops, pauses or promotes a trial is on the disk before Ray does it."""
        lost = self.stopper and self.stopper.interrupted  # maybe while the disk was full
        assert lost or self.acted_upon <= self.durable, "a decision is acted upon that a loss of power would undo"

    def find_room(self):
        if not self.is_full and self.happens("full"):
            self.is_full = self.chance.randint(1, 5)
        if self.is_full:
            self.is_full -= 1
            raise OSError(errno.ENOSPC, "No space left on device", "the disk")

    def sync(self):
        self.step()
        self.find_room()
        self.durable = len(self.written)
        self.step()

    def lose_power(self):
        """The journal keeps a part of what was not durable, perhaps a part of a line."""
        ends = [self.durable, *(n + 1 for n, byte in enumerate(self.written) if byte == 10 and n >= self.durable)]
        kept = self.chance.choice(ends)
        self.note(f"the journal keeps {self.written[:kept].count(10)} of {self.written.count(10)} lines")
        torn = self.written[kept:].partition(b"\n")[0]
        self.acted_upon = 0
        torn, self.written = torn[: self.chance.randint(0, 100)], self.written[:kept]
        self.paused = set()
        for line in self.written.splitlines():
            self.acts(json.loads(line))
        (self.folder / "journal.jsonl").write_bytes(self.written + torn)
        self.has_lost = True

    # nodes

    def change_nodes(self, manager):
        if len(self.slots) > 1 and self.chance.random() < 0.5:
            node = self.chance.choice(sorted(self.slots))
            if node in self.leaving or self.chance.random() < 0.5:
                del self.slots[node]
                self.leaving.discard(node)
                self.note(f"{node} goes")
                for actor in [actor for actor, at in manager.places.items() if at == node]:
                    manager.dies(actor)
            else:
                self.leaving.add(node)
                self.note(f"{node} is drained")
        elif len(self.slots) < 4:
            self.slots[f"node{self.tick}+"] = 2


class SimulatedNodes:
    """In place of `tuner.engine.cluster.nodes.Nodes`: asks the world."""

    def __init__(self, world, resources, most=0, *, follow=False, priority=0):
        self.world, self.resources, self.most, self.follow = world, resources, most, follow
        self.wanted, self.part = most or resources.concurrent, None

    def concurrent(self):
        if not self.follow:
            return self.resources.concurrent
        fit = sum(slots for node, slots in self.world.slots.items() if node not in self.world.leaving)
        if self.world.happens("node"):
            self.part = self.world.chance.choice([None, 1, 2])
        most = self.most or max(1, fit)
        return most if self.part is None else min(most, self.part)

    def too_many(self, num_workers):
        return self.part is not None and num_workers > self.part

    @property
    def leaving(self):
        return frozenset(self.world.leaving) if self.follow else frozenset()

    def notice(self, num_waiting, num_running):
        return ""
