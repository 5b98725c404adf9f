"""A logs spec: `--logs-specs=zstd --log-dir=DIR --redirects=3` writes compressed log files.

It uses the folders of the default logs spec; the files are `stdout.log.zst` and `stderr.log.zst`.
`zstdcat stdout.log.zst` works while the worker runs: output is readable a second later, once the
worker writes more. This needs Python 3.14 or the package backports-zstd.

With `--keep-daemons` workers write their files themselves, uncompressed; use the default logs spec
then.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from plaunch_logs_default import DefaultLogsSpecs

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.process import LogsDest, Sink

FLUSH_INTERVAL = 1.0  # seconds between two block ends; the file is readable up to the last one


class ZstdLogsSpecs(DefaultLogsSpecs):
    """The default logs spec's files, compressed while they are written."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of one start; `envs` are the workers' environments by local rank."""
        dest = super().reify(envs)
        for paths in (dest.stdouts, dest.stderrs, dest.tee_stdouts, dest.tee_stderrs):
            for local_rank, path in paths.items():
                if path not in ("", os.devnull):
                    paths[local_rank] = path + ".zst"
        self._dest = dest
        return dest

    def open_sink(self, local_rank: int, stream: str) -> Sink | None:
        """Open the file of a stream, if it has one."""
        paths = self._dest.stdouts if stream == "stdout" else self._dest.stderrs
        path = paths[local_rank]
        return None if path in ("", os.devnull) else ZstdSink(path)

    def planned(self, run_id: str, local_rank: int) -> dict[str, str]:
        """Return the paths that the files would have, for `--dry-run`."""
        files = super().planned(run_id, local_rank)
        return {
            name: path if name == "error_file" else path + ".zst" for name, path in files.items()
        }


class ZstdSink:
    """A file that is compressed while it is written."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = open(path, "ab")  # noqa: SIM115 - until `close`
        self._compressor = zstd.ZstdCompressor()
        self._clock = clock
        self._flushed = clock()

    def write(self, data: bytes) -> None:
        """Compress `data`; end a block every `FLUSH_INTERVAL` seconds."""
        is_due = self._clock() - self._flushed >= FLUSH_INTERVAL
        mode = self._compressor.FLUSH_BLOCK if is_due else self._compressor.CONTINUE
        self._file.write(self._compressor.compress(data, mode))
        if is_due:
            self._file.flush()
            self._flushed = self._clock()

    def close(self) -> None:
        """End the compressed stream, and close the file."""
        with self._file:
            self._file.write(self._compressor.flush())
