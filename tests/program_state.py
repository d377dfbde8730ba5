"""What a search in a user's program must leave as it was; imported by tests and by their programs."""

import logging
import os
import random
import signal
import sys
import warnings


def state():
    """Name -> value of variables, signal handlers, loggers and warnings filters of Ray, and the flag for bytecode."""
    loggers = {name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    ours = {name: one for name, one in loggers.items() if name.partition(".")[0] == "ray"}
    return {
        **os.environ,
        **{str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        **{name: str((one.level, one.propagate, one.disabled, handlers_of(one))) for name, one in ours.items()},
        "filters": str([each for each in warnings.filters if "ray" in str(each[3])]),
        "dont_write_bytecode": sys.dont_write_bytecode,
        "random": hash(random.getstate()),
    }


def handlers_of(logger):
    return [(str(each), each.formatter and each.formatter._fmt) for each in logger.handlers]


def different(before, after):
    """What has changed, and what is new, except loggers as `getLogger` makes them."""
    pairs = [(name, before.get(name), after.get(name)) for name in {**before, **after}]
    return [each for each in pairs if each[1] != each[2] and each[1:] != (None, str((0, True, False, [])))]
