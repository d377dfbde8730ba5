"""What an import has changed in a process's environment."""

from __future__ import annotations

from collections.abc import Mapping

Changed = dict[str, tuple[str | None, str | None]]  # variable -> its value before, and after; None stands for no value


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that differ between two environments, with their later values; None if there is none."""
    return {name: after.get(name) for name in {*before, *after} if after.get(name) != before.get(name)}
