"""Teed streams whose file somebody else writes: the file is followed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from _typeshed import ReadableBuffer as Buffer

    from plaunch.process.streams.console import Console
    from plaunch.process.streams.tail import TailLog


class StreamTails:
    """Shows lines of files, and collects those that match, until it is stopped."""

    def __init__(self, prefixes: Mapping[int, str]) -> None:
        self._prefixes = dict(prefixes)
        self._tails: list[TailLog] = []
        self._targets: list[TextIO] = []

    def follow(
        self,
        label: str,
        files: Mapping[int, str],
        console: Console | None,
        needles: Sequence[str] = (),
        needles_path: str = "",
    ) -> None:
        """Show the lines of `files` (by local rank) on `console`.

        With `needles` and `needles_path`, lines that contain one of the needles are also added to
        the file of that name.

        Raises:
            OSError: that file cannot be opened.
        """
        from plaunch.process.streams.tail import TailLog  # noqa: PLC0415 - a third party's logs spec only

        if console is not None:
            writer = cast("io.BufferedWriter", _ConsoleWriter(console))
            shown = io.TextIOWrapper(
                writer, "utf-8", "surrogateescape", newline="", write_through=True
            )
            self._targets.append(shown)
            self._tails.append(TailLog(label, dict(files), shown, self._prefixes).start())
        if needles and needles_path:
            collected = open(  # noqa: SIM115 - closed by `stop`
                needles_path, "a", encoding="utf-8", errors="surrogateescape", buffering=1
            )
            self._targets.append(collected)
            self._tails.append(
                TailLog(
                    label,
                    dict(files),
                    collected,
                    self._prefixes,
                    log_line_filter=lambda line: any(needle in line for needle in needles),
                ).start()
            )

    def stop(self) -> None:
        """Read the files to their end, and end all threads."""
        for tail in self._tails:
            tail.stop()
        for target in self._targets:
            target.close()


class _ConsoleWriter(io.BufferedIOBase):
    """A binary file whose bytes go to a console, each write in one piece."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def writable(self) -> bool:
        """Whether it can be written to: yes."""
        return True

    def write(self, data: Buffer) -> int:
        """Show `data`; never blocks."""
        block = bytes(data)
        self._console.put(block, self)
        return len(block)
