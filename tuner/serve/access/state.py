"""The service's own folder. It lies in the user's state folder, not in the results, because it contains secrets."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import platformdirs

from tuner.errors import RequestError
from tuner.record.format import FIELD, FORMAT, check_format
from tuner.record.storage.files import bytes_in, write_atomically
from tuner.serve.access.ownership import ANY, refuse_others

TOKEN, TOKEN_FILE = "TUNER_TOKEN", "TUNER_TOKEN_FILE"  # environment variables: the token, or the path of a file with it
LEAST_CHARS = 32  # minimum length of a token; a shorter one could be guessed, because wrong tries lock nobody out
BASE = "TUNER_STATE"  # environment variable: a folder to use in place of the user's state folder
ELSEWHERE = f"set {BASE} to a folder of your own"


def state_folder(results: Path) -> Path:
    """Creates and returns the folder of the service's own files for `results`: token and queue.

    Raises:
        RequestError: the folder cannot be created or read, or is not this user's alone; the service trusts its files.
        OtherFormat: the folder has files, but not the format number of this version.
    """
    base = Path(os.environ.get(BASE) or platformdirs.user_state_path("tuner")).expanduser().absolute()
    whole = results.resolve()
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", whole.name)[:40]
    folder = base / "services" / f"{readable}-{hashlib.sha256(os.fsencode(whole)).hexdigest()[:16]}"
    for each in (base, folder.parent, folder):
        try:
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_others(each, ANY, ELSEWHERE)
        except OSError as error:
            raise RequestError(f"{each} cannot be created ({error.strerror}); {ELSEWHERE}") from None
    try:
        if all(name.startswith(".") for name in os.listdir(folder)):  # empty, except for an unfinished file
            write_atomically(folder / FIELD, f"{FORMAT}\n")
        text = bytes_in(folder, FIELD, 100).decode().strip()
    except FileNotFoundError:
        text = None
    except (OSError, ValueError) as error:
        raise RequestError(f"{folder / FIELD} cannot be read or written ({error}); {ELSEWHERE}") from None
    check_format(int(text) if text and text.isascii() and text.isdigit() else text, folder)
    return folder


def token_from_environment() -> str:
    """Returns the token from TUNER_TOKEN, or from the file that TUNER_TOKEN_FILE names; empty if neither is set.

    Removes TUNER_TOKEN from the environment, where the code of a space, in a child process, could read it. Raises
    RequestError if the file cannot be read or the token is shorter than LEAST_CHARS.
    """
    token, path = os.environ.pop(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
    try:
        token = token.strip() or (Path(path).read_text().strip() if path else "")
    except (OSError, ValueError) as error:
        raise RequestError(f"{TOKEN_FILE}={path} cannot be read ({error}); name a file with the token") from None
    if len(token) < LEAST_CHARS and (token or path):
        raise RequestError(
            f"the token in {TOKEN_FILE} or {TOKEN} has {len(token)} characters, give {LEAST_CHARS} or more "
            "(openssl rand -hex 16 prints as many), or leave it out"
        )
    return token
