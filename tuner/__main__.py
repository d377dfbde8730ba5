"""The command `tuner`: `tuner run --space cifar` does what `python -m tuner.run --space cifar` does; see COMMANDS."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import NoReturn

from tuner import end_at_interrupt

COMMANDS = {  # command -> its module, whose `main` takes the words after the command
    "run": "tuner.run",
    "serve": "tuner.serve.__main__",
    "report": "tuner.report",
    "train": "tuner.train",
    "audit": "tuner.audit",
    "gpus": "tuner.gpus",
    "mirror": "tuner.tuning.output.wandb_mirror",
}


def main() -> NoReturn:
    """Runs the command that the first argument names; exits with its code, 0 after --help, 2 for no known command."""
    end_at_interrupt()  # before the imports, which take long
    from tuner.errors import leave, nearest, open_streams

    open_streams()
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(f"usage: tuner {{{','.join(COMMANDS)}}} [options]\n\n`tuner COMMAND --help` lists a command's options.")
        leave(0)
    if not words or words[0] not in COMMANDS:
        given = words[0] if words else "no command"
        hint = nearest(given, COMMANDS) if words else ""
        print(f"tuner: error: {given}: the commands are {', '.join(COMMANDS)}{hint}", file=sys.stderr)
        leave(2)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: --space may name a module there
    command = importlib.import_module(COMMANDS[words[0]])
    if words[0] != "run" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    leave(command.main(words[1:]))


if __name__ == "__main__":
    main()
