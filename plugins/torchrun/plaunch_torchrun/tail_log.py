"""Copying growing log files to a stream: `TailLog`, with torch's names.

plaunch itself does not use it: process contexts show redirected and teed output.
"""

from __future__ import annotations

import codecs
import io
import os
import threading
from typing import TYPE_CHECKING

from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import BinaryIO, TextIO

_CHUNK_BYTES = 64 << 10
_MAX_LINE_CHARS = 64 << 10


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    r"""Write the lines of `file` to `dst` until `finished` is set and all have been written.

    Runs in the calling thread. A line is written once it is complete, after `header`; the last one
    also without its end. `\r` ends a line, as in text files, so that progress bars are seen. Bytes
    that are not UTF-8 pass unchanged if `dst` has a `buffer`.

    Args:
        header: written before each line.
        file: the file; it need not exist yet, and may never exist.
        dst: the stream for the lines.
        finished: set by the caller after the last write to `file`.
        interval_sec: the polling interval in seconds.
        log_line_filter: returns whether to show a line, which includes its line end.

    Raises:
        OSError: `file` cannot be read, or `dst` cannot be written to.
    """
    while not os.path.exists(file):
        # In this order, so that a file created just before the end is not missed.
        if finished.is_set() and not os.path.exists(file):
            return
        finished.wait(interval_sec)
    with open(file, "rb") as source:
        lines = LogLines(source)
        while True:
            # Checked before reading, so that nothing written before the event is missed.
            ended = finished.is_set()
            shown = False
            for line in lines.read(ended):
                if log_line_filter is None or log_line_filter(line):
                    _write(dst, header, line)
                    shown = True
            if shown:
                dst.flush()
            if ended:
                return
            finished.wait(interval_sec)


class TailLog:
    """Shows several log files on one stream, each line after the prefix of its rank.

    The files need not exist yet. Lines of one file keep their order; complete lines of different
    files are interleaved. An error of a file or stream is logged, and the other files continue.

    Args:
        name: part of the default prefix `[<name><local_rank>]:`.
        log_files: the files by local rank.
        dst: the stream for the lines; None for none.
        log_line_prefixes: prefixes by local rank, instead of the default.
        interval_sec: the polling interval in seconds.
        log_line_filter: returns whether to show a line.
    """

    def __init__(
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO | None,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Callable[[str], bool] | None = None,
    ) -> None:
        self._name = name
        self._log_files = dict(log_files)
        self._dst = dst
        self._prefixes = dict(log_line_prefixes or {})
        self._interval_sec = interval_sec
        self._filter = log_line_filter
        self._finished = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def start(self) -> TailLog:
        """Start one thread per file; returns the object itself.

        Raises:
            ThreadStartError: no thread can be started.
        """
        if self._dst is None:
            return self
        for rank, file in self._log_files.items():
            header = self._prefixes.get(rank, f"[{self._name}{rank}]:")
            thread = threading.Thread(
                target=self._tail,
                args=(header, file, self._dst),
                name=f"plaunch-tail-{self._name}{rank}",
                daemon=True,
            )
            start_thread(thread)
            self._threads.append(thread)
        return self

    def stop(self) -> None:
        """Show the remaining lines and stop; call it after the last write to the files.

        Blocks until all lines are written; a signal handler that raises interrupts it.
        """
        self._finished.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._stopped = True

    def stopped(self) -> bool:
        """Whether `stop` has completed."""
        return self._stopped

    def _tail(self, header: str, file: str, dst: TextIO) -> None:
        try:
            tail_logfile(header, file, dst, self._finished, self._interval_sec, self._filter)
        except Exception as error:  # noqa: BLE001 - `dst` and the filter are the caller's code
            import logging  # rare

            logging.getLogger("plaunch").error(
                "log file %r is no longer shown: %s: %s", file, type(error).__name__, error
            )


class LogLines:
    """Splits a growing file into lines; keeps an incomplete line for the next read.

    Args:
        source: the file.
        chunk_bytes: how much is read at a time.
        most_chars: the length of a line, beyond which it is shown in pieces.
    """

    def __init__(
        self,
        source: BinaryIO,
        chunk_bytes: int = _CHUNK_BYTES,
        most_chars: int = _MAX_LINE_CHARS,
    ) -> None:
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._most_chars = most_chars
        utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
        self._rest = ""

    def read(self, ended: bool) -> Iterator[str]:
        """Yield the complete lines so far, with line ends; also an incomplete one if `ended`."""
        # Otherwise a process that still writes after the end would keep this loop running.
        size = os.fstat(self._source.fileno()).st_size
        while self._source.tell() < size and (chunk := self._source.read(self._chunk_bytes)):
            yield from self._cut(self._decoder.decode(chunk))
        if ended:
            yield from self._cut(self._decoder.decode(b"", final=True))
            if self._rest:
                yield self._rest + "\n"
                self._rest = ""

    def _cut(self, text: str) -> Iterator[str]:
        *complete, self._rest = (self._rest + text).split("\n")
        for line in complete:
            yield line + "\n"
        while len(self._rest) > self._most_chars:
            yield self._rest[: self._most_chars] + "\n"
            self._rest = self._rest[self._most_chars :]


def _write(dst: TextIO, header: str, line: str) -> None:
    """Write one line in one call, so that lines of different threads do not mix."""
    raw = (header + line).encode("utf-8", "surrogateescape")
    buffer = getattr(dst, "buffer", None)
    if buffer is None:
        dst.write(raw.decode("utf-8", "replace"))
    else:
        buffer.write(raw)
