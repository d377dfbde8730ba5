"""One trial of `syne_tune_local`: the tutorial's training as a script that Syne Tune starts."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from syne_tune import Reporter

from benchmarks.peers import tutorial


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    for name, kind in {"l1": int, "l2": int, "lr": float, "batch_size": int}.items():
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--st_checkpoint_dir", type=Path)
    setting = vars(parser.parse_known_args()[0])

    report = Reporter()
    for metrics, state in tutorial.train_cifar(setting):
        tutorial.save(state, setting["st_checkpoint_dir"])
        report(epoch=state["epoch"], **metrics)


if __name__ == "__main__":
    main()
