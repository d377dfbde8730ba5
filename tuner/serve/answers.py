"""Answers of the API as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi.responses import JSONResponse
from starlette.responses import Response

from tuner.journal import strict


def answer(row: Any) -> Response:
    """A dataclass as JSON, floats that JSON has not as the strings that the journal writes."""
    return JSONResponse(strict(dataclasses.asdict(row)))
