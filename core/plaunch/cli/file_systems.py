"""Files that users name: a file system whose server is down must not keep the launcher silent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from plaunch.cli.console import STDERR
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")
NOTICE_AFTER = 5.0  # seconds


def await_file_system(
    what: str, function: Callable[[], R], notice_after: float = NOTICE_AFTER
) -> R:
    """Call a function that accesses a file, and say what it waits for if it takes long.

    It waits without a limit, as the workers would, for a server that may come back. Ctrl-C ends the
    launcher meanwhile, because the call runs on another thread.

    Args:
        what: the file, for the message: what it is, and its path.
        function: the access; raises its own exceptions.
        notice_after: seconds until the message.
    """
    call = BoundedCall("file", function)
    if not call.wait(notice_after):
        STDERR.say(
            f"waiting for {what}: its file system has not answered for {notice_after:g} s; check "
            "that its server is up (Ctrl-C ends plaunch)",
            "WARNING",
        )
        call.wait(math.inf)
    if call.error is not None:
        raise call.error
    return call.result  # type: ignore[return-value]
