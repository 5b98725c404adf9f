"""Starting threads that plaunch cannot do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import ThreadStartError

if TYPE_CHECKING:
    import threading

_NO_THREAD = "can't start new thread"


def start_thread(thread: threading.Thread) -> None:
    """Start `thread`.

    Raises:
        ThreadStartError: the system gives no more threads; the message says which limits there are.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise  # the interpreter is ending, say
        from plaunch.capacity import describe_shortage  # noqa: PLC0415 - errors only

        raise ThreadStartError(
            f"cannot start the thread {thread.name!r} of the launcher: {describe_shortage()}"
        ) from error
