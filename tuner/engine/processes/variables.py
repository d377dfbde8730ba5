"""Variables of the environment: those of the service, and those that an import has changed."""

from __future__ import annotations

from collections.abc import Mapping

# A library that makes its threads at its import cannot be forked afterwards; each trial sets its own number.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
Changed = dict[str, tuple[str | None, str | None]]  # variable -> its value before, and after; None stands for no value


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that differ between two environments, with their later values; None marks a removed one."""
    return {name: after.get(name) for name in {*before, *after} if after.get(name) != before.get(name)}
