"""A process that ends at once before a chosen change of its files, as by SIGKILL."""

import itertools
import os
import sys
import warnings


def killed_at(step, work):
    """Does some work in a process that ends at once before its change number `step` of files; True if it ended so."""
    changes = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "shutil.rmtree", "ctypes.dlsym")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have started threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    count = itertools.count(1)
    sys.addaudithook(lambda event, _: os._exit(9) if event in changes and next(count) == step else None)
    try:
        work()
    finally:
        os._exit(0)
