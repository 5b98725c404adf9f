"""Saying which plugin has ended the launcher, where it does so without a word."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import TYPE_CHECKING, NoReturn

from plaunch.plugin.culprits import Culprits
from plaunch.process.launcher_variables import owns_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType


_STDERR = 2
_PATIENCE = 200  # milliseconds for a stderr that takes nothing


def explained_culprits() -> Culprits:
    """Make a list of plugins; in the process of the command line, say who of them ends it.

    A process that is not plaunch's own is left as it is.
    """
    culprits = Culprits()
    if owns_process():
        if not isinstance(os._exit, ExplainedExit):
            os._exit = ExplainedExit(os._exit)
        os._exit.known.append(culprits)
    return culprits


class ExplainedExit:
    """Stands for `os._exit`, which ends a process as it is; in forked ones it says nothing."""

    def __init__(self, end: Callable[[int], NoReturn]) -> None:
        self.known: list[Culprits] = []
        self._end = end
        self._launcher = os.getpid()

    def __call__(self, status: int) -> NoReturn:
        """End the process; say first whose idea it is, if that is a plugin's."""
        if os.getpid() == self._launcher:
            with contextlib.suppress(Exception):
                self._explain(status)
        self._end(status)

    def _explain(self, status: int) -> None:
        found = find_culprit(sys._getframe(2))
        if found is None:
            return
        who, code, line = found
        poller = select.poll()
        poller.register(_STDERR, select.POLLOUT)
        if poller.poll(_PATIENCE):
            text = (
                f"plaunch: {who} has ended the launcher with os._exit({status}), in "
                f"{code.co_name} ({code.co_filename}:{line}), and with it the job. A plugin raises "
                "an exception where something is wrong\n"
            )
            os.write(_STDERR, text.encode("utf-8", "backslashreplace"))


def find_culprit(frame: FrameType) -> tuple[str, CodeType, int] | None:
    """The plugin that has called, with the code and the line; only where exits are explained."""
    end = os._exit
    if isinstance(end, ExplainedExit):
        for culprits in end.known:
            found = culprits.of_stack(frame)
            if found is not None:
                return found
    return None
