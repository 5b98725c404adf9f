"""Folders for log files: checked before they are needed, and never used twice."""

from __future__ import annotations

import os

from plaunch.errors import LogDirectoryError
from plaunch.folders import absolute
from plaunch.numbers import quote

_MAX_NAME_CHARS = 120  # of a run id inside a folder name; file systems allow 255 bytes
_MAX_PATH = 3000  # bytes; the system takes 4096, of which our folders need some


def check_log_dir(path: str) -> None:
    """Tell now, rather than when workers start, that log folders cannot be created in `path`.

    It need not exist yet.

    Raises:
        LogDirectoryError: it is a file or below one, cannot be written to, or is no path at all.
    """
    try:
        problem = "has a NUL character" if "\0" in path else ""
        problem = problem or ("is too long" if len(os.fsencode(path)) > _MAX_PATH else "")
    except UnicodeEncodeError:
        problem = "has characters that cannot be encoded"
    if problem:
        raise LogDirectoryError(f"log directory {quote(path)} {problem}; name another one")
    existing = whole = absolute(path, "log directory")
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        what = "it" if existing == whole else repr(existing)
        problem = f"{what} is {'a file' if os.path.isfile(existing) else 'not a directory'}"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{existing!r} is not writable for this user"
    if problem:
        raise LogDirectoryError(
            f"log directory {path!r} cannot be used: {problem}; name another one"
        )


def create_log_folder(parent: str, name: str, *, mode: int = 0o777, middle: str = "") -> str:
    """Create the folder `<parent>/<name>_<middle>-<random>`, which nobody else has.

    Missing parents are created as well. Returns its absolute path.

    Raises:
        LogDirectoryError: it cannot be created.
    """
    parent = absolute(parent, "log directory")
    try:
        os.makedirs(parent, exist_ok=True)
    except OSError as error:
        raise LogDirectoryError(f"log directory {parent!r} cannot be created: {error}") from error
    stem = os.path.join(parent, folder_name(name))
    while True:
        path = f"{stem}_{middle}{'-' if middle else ''}{os.urandom(4).hex()}"
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            continue
        except OSError as error:
            raise LogDirectoryError(f"log folder {path!r} cannot be created: {error}") from error
        return path


def folder_name(text: str) -> str:
    """`text` as one component of a path: no separators, no spaces, not hidden, not too long."""
    name = "".join(
        char if char.isascii() and (char.isalnum() or char in "-_.+=@") else "_"
        for char in text[:_MAX_NAME_CHARS]
    )
    return "_" + name[1:] if name.startswith(".") else name
