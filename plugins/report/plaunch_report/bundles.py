"""Reading the events and the report of a failure bundle, which is untrusted input.

No file is unpacked under a name from the bundle. A bundle with a file that plaunch would not write
is rejected.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
import zlib
from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import UsageError
from plaunch.texts import printable_message

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".zip"
MAX_FILES = 10_000
MAX_BYTES = 256 << 20  # of all files in a bundle, and of the bundle
_EVENTS, _REPORT = "events.jsonl", "report.txt"
_MAX_REPORT = 4 << 20  # bytes
_SLICE = 1 << 20
_IS_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Bundle(NamedTuple):
    """The content of a bundle.

    Args:
        folder: a temporary folder with its events; empty if there are none.
        report: the failure report; empty if there is none.
    """

    folder: str
    report: str


@contextlib.contextmanager
def open_bundle(path: str, max_bytes: int = MAX_BYTES) -> Iterator[Bundle]:
    """Read a bundle; its folder of events exists until the end of the block.

    Raises:
        UsageError: it is not a bundle, or has neither events nor a report.
    """
    with tempfile.TemporaryDirectory(prefix="plaunch_report_") as folder:
        try:
            bundle = _read(path, folder, max_bytes)
        except (
            OSError,
            RuntimeError,
            ValueError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(f"{path!r} is not a failure bundle: {why}") from error
        if not any(bundle):
            raise UsageError(
                f"{path!r} is not a failure bundle: it has neither events nor a report"
            )
        yield bundle


def _read(path: str, folder: str, max_bytes: int) -> Bundle:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise ValueError("it is too large")
        with zipfile.ZipFile(file) as archive:
            found = _check(archive, max_bytes)
            has_events = bool(found.get(_EVENTS) and found[_EVENTS].file_size)
            if has_events:
                _copy(archive, found[_EVENTS], os.path.join(folder, _EVENTS))
            report = _read_text(archive, found[_REPORT]) if _REPORT in found else ""
    return Bundle(folder if has_events else "", report)


def _check(archive: zipfile.ZipFile, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the files by name.

    Raises:
        ValueError: plaunch would not write one of them.
    """
    infos = archive.infolist()
    if len(infos) > MAX_FILES:
        raise ValueError(f"it has {len(infos)} files")
    if sum(info.file_size for info in infos) > max_bytes:
        raise ValueError(f"its files have more than {max_bytes >> 20} MiB")
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename
        parts = name.split("/")
        if "\\" in name or not name.isprintable() or not {"", ".", ".."}.isdisjoint(parts):
            raise ValueError(f"its file {name!r:.200} has an invalid path")
        if name in found:
            raise ValueError(f"it has two files {name!r:.200}")
        if info.flag_bits & _IS_ENCRYPTED or info.compress_type not in _METHODS:
            raise ValueError(f"its file {name!r:.200} is encrypted, or has an unknown compression")
        found[name] = info
    return found


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> None:
    # zipfile returns no more than the size that was checked, whatever the compressed data is.
    with archive.open(info) as source, open(path, "wb") as target:
        while data := source.read(_SLICE):
            target.write(data)


def _read_text(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    with archive.open(info) as source:
        text = source.read(_MAX_REPORT).decode(errors="replace")
    return printable_message(text)
