"""Signals to the test's own process, and a signal policy."""

from __future__ import annotations

import ctypes
import os
import signal

_raise = getattr(ctypes.CDLL(None), "raise")


def send(*signums):
    """Send signals to this process, in this order."""
    for signum in signums:
        os.kill(os.getpid(), signum)


def send_before_handlers_run(*signums):
    """Send signals to this thread, in this order; Python calls its handlers after the last one.

    No Python code runs in between, as when a thread waits for the interpreter's lock.
    """
    assert [*map(_raise, signums)] == [0] * len(signums)


class Policy:
    """A policy with the given actions; an exception in place of an action is raised."""

    def __init__(self, **actions):
        self.asked = []  # whose actions were read
        self._actions = {signal.Signals[name]: action for name, action in actions.items()}

    def signals(self):
        return tuple(self._actions)

    def action(self, signum):
        self.asked.append(signum)
        action = self._actions[signum]
        if isinstance(action, Exception):
            raise action
        return action
