"""Functions for scripts: heartbeats, and whether and when to restart after a failure.

Importing the module imports nothing; each function imports what it needs when it is called.
"""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import NoReturn

    def heartbeat(step: int | None = None, total: int | None = None) -> None: ...  # noqa: D103

    def section(name: str, timeout: float | str) -> AbstractContextManager[object]: ...  # noqa: D103


__all__ = ["give_up", "heartbeat", "retry_later", "section"]


def __getattr__(name: str) -> object:
    """Load `heartbeat` or `section` on first use."""
    if name not in ("heartbeat", "section"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from plaunch.parts import HEARTBEATS, load_part

    globals()[name] = value = load_part(f"{HEARTBEATS}:{name}")
    return value


def give_up(reason: str) -> NoReturn:
    """End this worker, and report that a restart would not help.

    The error file carries this to the launcher, and the restart policy decides: `standard` and most
    others end the job and report the reason. On the main thread this raises `SystemExit` with exit
    code 1, which `except Exception` does not catch. On another thread it ends the process at once,
    without cleanup, because `SystemExit` would only end that thread. In a process that the worker
    has forked, it only ends that process, and its report is used if the worker fails.

    Without a launcher or an error file, the reason is only printed to stderr.

    Args:
        reason: the reason, for the operator.
    """
    import sys

    text = str(reason).strip() or "no reason given"
    _end(text, f"gives up: {text}", {"retryability": "False"}, sys._getframe(1))


def retry_later(seconds: float, reason: str = "") -> NoReturn:
    """End this worker, and request a restart after some time.

    Otherwise as `give_up`. It needs a restart that is left, as after any failure, and all workers
    of the job wait.

    Args:
        seconds: seconds to wait after this failure, from 0.
        reason: the reason, for the operator.

    Raises:
        UsageError: `seconds` is invalid; it is a `ValueError`.
    """
    import sys

    from plaunch.durations import Duration

    Duration(may_be_zero=True).check(seconds, "seconds of plaunch.worker.retry_later")
    request = f"requests another start after {float(seconds):g} s"
    text = str(reason).strip()
    traits = {"retryability": "True", "retry_after": float(seconds)}
    _end(text or request, f"{request}: {text}" if text else request, traits, sys._getframe(1))


def _end(text: str, line: str, traits: dict[str, object], frame: FrameType) -> NoReturn:
    """Write the error file, print `line` to stderr, and exit with code 1."""
    import os
    import sys
    import threading

    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        try:
            _write(path, text, line, traits, frame)
        except Exception as error:  # noqa: BLE001 - the worker must end with its reason
            line += f"\nThe launcher does not know: {type(error).__name__}: {error}"
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(1)
    if sys.stdout is not None:
        sys.stdout.flush()
    os._exit(1)


def _write(path: str, text: str, line: str, traits: dict[str, object], frame: FrameType) -> None:
    import sys
    import traceback

    from plaunch.parts import WRITE_EXIT_REASON, load_part

    stack = ["Traceback (most recent call last):\n", *traceback.format_stack(frame), line, "\n"]
    if sys.exc_info()[1] is not None:
        stack.insert(0, f"{traceback.format_exc()}\nWhile handling it:\n\n")
    load_part(WRITE_EXIT_REASON)(path, text, "".join(stack), traits)
