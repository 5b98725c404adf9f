"""Calls on other threads."""

from __future__ import annotations

import contextlib
import threading


class Call:
    """A call on a thread, and its result."""

    def __init__(self, function, *args):
        self.result = self.error = None
        self._done = threading.Event()

        def run():
            try:
                self.result = function(*args)
            except BaseException as error:
                self.error = error
            self._done.set()

        threading.Thread(target=run, daemon=True).start()

    def ended(self, timeout=30.0):
        return self._done.wait(timeout)

    def get(self):
        """Wait for the end; return its result or raise its exception."""
        assert self.ended(60.0), "the call does not end"
        if self.error is not None:
            raise self.error
        return self.result


def at_once(*functions):
    """Return the results of concurrent calls."""
    calls = [Call(function) for function in functions]
    return [call.get() for call in calls]


@contextlib.contextmanager
def meanwhile(function, *args):
    """Call a function on another thread, which has ended after the block."""
    thread = threading.Thread(target=function, args=args)
    thread.start()
    try:
        yield
    finally:
        thread.join()
