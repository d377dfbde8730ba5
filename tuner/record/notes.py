"""Tags, notes and the archive mark of an experiment: `notes.json` in its folder. No search reads this file."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.saved_experiment import FILE as EXPERIMENT
from tuner.record.storage.files import bytes_in, is_file_in, parsed

FILE = "notes.json"
MOST_FILE = 64 << 10  # maximum bytes of the file; the longest notes and tags take 34 kB
MAX_NOTES_CHARS = 2000  # maximum characters of the notes; the list of experiments shows them
MOST_TAGS = 20
TAG = re.compile(r"[\w.+/-]{1,40}")


@dataclass(frozen=True)
class Notes:
    """The tags, notes and archive mark of one experiment; building it with a wrong value raises a RequestError."""

    tags: tuple[str, ...] = ()
    notes: str = ""
    archived: bool = False

    def __post_init__(self) -> None:
        if len(self.tags) > MOST_TAGS:
            raise RequestError(f"{len(self.tags)} tags: give at most {MOST_TAGS}")
        for tag in self.tags:
            if not (isinstance(tag, str) and TAG.fullmatch(tag)):
                raise RequestError(f"tag {str(tag)[:60]!r}: must be 1 to 40 letters, digits or any of _ . + / -")
        if len(set(self.tags)) < len(self.tags):
            raise RequestError("a tag is given twice; give each tag once")
        if not isinstance(self.notes, str) or len(self.notes) > MAX_NOTES_CHARS:
            raise RequestError(f"notes: must be a text of {MAX_NOTES_CHARS:,} characters at most")
        if not all(each.isprintable() or each in "\n\t" for each in self.notes):
            raise RequestError("notes: must have printable characters, spaces and line ends only")
        if type(self.archived) is not bool:
            raise RequestError(f"archived {str(self.archived)[:60]!r}: must be true or false")

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


class ForeignNotes(RequestError):
    """Raised if notes.json may be another program's, so it must not be replaced."""


def read_notes(folder: Path) -> Notes:
    """Reads an experiment's notes.json, which may be missing; raises RequestError if it is damaged or unreadable.

    Raises ForeignNotes if it has other fields than `Notes`, or is damaged in a folder that tuner has not made.
    """
    foreign = ForeignNotes(f"{folder / FILE} is not tuner's; rename it, or move it away, to save tags and notes")
    try:
        fields: Any = parsed(bytes_in(folder, FILE, MOST_FILE))
        if fields.keys() - {field.name for field in dataclass_fields(Notes)}:
            raise foreign
        tags = fields.get("tags", [])
        if not isinstance(tags, list):
            raise RequestError("tags: must be a list")
        return Notes(tuple(tags), fields.get("notes", ""), fields.get("archived", False))
    except FileNotFoundError:
        return Notes()
    except (OSError, ValueError, AttributeError, RequestError) as error:
        if error is foreign or not is_file_in(folder, EXPERIMENT):
            raise foreign from None
        what = str(getattr(error, "strerror", None) or error)[:200]
        raise RequestError(f"{FILE} cannot be read ({what}); save the notes again, or delete the file") from None
