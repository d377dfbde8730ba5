"""The exception of the preflight check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]


@dataclass
class Failed(Exception):
    """Raised if a part of the space or its data fails.

    Attributes:
        advice: what is allowed and what to do; empty if nothing is certain.
        tried: the config with which it failed; empty if the config does not matter.
    """

    part: str
    problem: str
    advice: str = ""
    tried: Config = field(default_factory=dict)
