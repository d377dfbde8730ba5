"""The loop of a library's process: reads requests as JSON lines, and answers each with a JSON line."""

import json
import os
import sys
import traceback


def serve(build):
    """Serves searches until the standard input ends.

    Args:
        build: makes a method (`next`, `report`) from the kind of search and the problem.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not be read as an answer
    method = None
    for line in sys.stdin:
        try:
            request, *values = json.loads(line)
            if request == "start":
                method, answer = build(*values), None
            else:
                answer = getattr(method, request)(*values)
            answers.write(json.dumps({"answer": answer}, default=lambda number: number.item()) + "\n")
        except Exception as error:  # the other side decides what an error ends
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            answers.write(json.dumps({"error": text}) + "\n")
        answers.flush()


class Staged:
    """A search of a library that asks for a setting's value after a number of epochs, and later after more.

    A setting is trained from where it paused, as with a checkpoint: a stage costs only the epochs that it adds. If the
    library asks for a later stage of a setting that is training, the setting continues to it without a pause.
    Subclasses have `ask`, which returns a key of the setting, the setting, the epochs and a handle, and `tell`.
    """

    def __init__(self, problem):
        self._sign = 1 if problem["mode"] == "min" else -1
        self._numbers = {}  # key -> trial
        self._curves = []  # trial -> its losses
        self._stages = {}  # running trial -> [(epochs, handle)]

    def next(self):
        """Returns the number and the setting of the trial that a free worker starts or continues; None = none."""
        for _ in range(100):
            asked = self.ask()
            if asked is None:
                return None
            key, setting, epochs, handle = asked
            trial = self._numbers.setdefault(key, len(self._numbers))
            if trial == len(self._curves):
                self._curves.append([])
            if epochs <= len(self._curves[trial]):
                self.tell(handle, self._curves[trial][epochs - 1])  # it is known already
            elif trial in self._stages:
                self._stages[trial].append((epochs, handle))
            else:
                self._stages[trial] = [(epochs, handle)]
                return trial, setting
        return None

    def report(self, trial, epoch, value):
        """Decides on a trial after one more epoch."""
        self._curves[trial].append(self._sign * value)
        stages = self._stages.pop(trial)
        for epochs, handle in stages:
            if epochs <= epoch:
                self.tell(handle, self._curves[trial][epochs - 1])
        left = [stage for stage in stages if stage[0] > epoch]
        if not left:
            return "pause"
        self._stages[trial] = left
        return "continue"
