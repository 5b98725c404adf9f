"""A store in one process."""

from __future__ import annotations

import threading


class Store:
    """A dictionary shared by threads, sufficient for a barrier of fake nodes."""

    def __init__(self):
        self.values = {}
        self.waited = []  # for which keys, and for how many seconds at most
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self.values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, 30)
            return self.values[key]

    def add(self, key, num):
        with self._changed:
            total = int(self.values.get(key, b"0")) + num
            self.values[key] = str(total).encode()
            return total

    def wait(self, keys, timeout):
        """Raise instead of waiting if a key is missing."""
        self.waited.append((keys, timeout.total_seconds()))
        if not all(key in self.values for key in keys):
            raise RuntimeError("timed out")
