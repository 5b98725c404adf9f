"""A SQLite file as the store that the nodes of a job share."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

from plaunch.rendezvous import RendezvousConnectionError
from plaunch_membership import RendezvousStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_POLL = 0.01  # seconds between two reads of a waiting call: SQLite does not notify readers


class SqliteStore(RendezvousStore):
    """One connection to the file.

    Args:
        path: the file; created if it does not exist, in an existing folder.
        busy_timeout: seconds to wait for other writers before an operation fails.

    Raises:
        RendezvousConnectionError: the file cannot be opened.
    """

    def __init__(self, path: str, busy_timeout: float = 5.0) -> None:
        self._path = path
        self._lock = threading.Lock()  # `close` may be called by another thread
        self._closed = threading.Event()
        with self._translated():
            # Without an isolation level, only BEGIN starts a transaction.
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
            )
            try:
                # Readers do not wait for a writer, and nothing waits for the disk: no job outlives
                # the machine.
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = OFF")
                self._connection.execute(
                    "CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value BLOB)"
                )
            except BaseException:
                self._connection.close()
                raise

    def set(self, key: str, value: bytes) -> None:
        """Write `value`."""
        with self._writing():
            self._write(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add `amount`; the sum is kept as decimal digits."""
        with self._writing():
            total = int(self._read(key) or b"0") + amount
            self._write(key, b"%d" % total)
            return total

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected`; return the value afterwards."""
        with self._writing():
            held = self._read(key)
            if held == expected:
                self._write(key, desired)
                return desired
            return held

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of all `keys`."""
        with self._open():
            return [self._read(key) for key in keys]

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Wait for a value; `close` ends the wait with an error."""
        deadline = time.monotonic() + timeout
        while True:
            with self._open():
                value = self._read(key)
            left = deadline - time.monotonic()
            if value is not None or left <= 0:
                return value
            self._closed.wait(min(_POLL, left))

    def delete(self, key: str) -> None:
        """Remove `key`."""
        with self._writing():
            self._connection.execute("DELETE FROM records WHERE key = ?", (key,))

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items` in one transaction."""
        with self._writing():
            for key, value in items.items():
                self._write(key, value)

    def close(self) -> None:
        """Close the connection after the statement of another thread."""
        self._closed.set()
        with self._lock:
            self._connection.close()

    # --- one operation ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise SQLite's errors as `RendezvousConnectionError`."""
        try:
            yield
        except sqlite3.Error as error:
            raise RendezvousConnectionError(
                f"the rendezvous store {self._path!r} does not answer: {error}"
            ) from error

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock, self._translated():
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Run one transaction, which excludes other writers from its beginning."""
        with self._open():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _read(self, key: str) -> bytes | None:
        row = self._connection.execute("SELECT value FROM records WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def _write(self, key: str, value: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (key, value))
