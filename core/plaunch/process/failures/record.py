"""`record`, with which a worker lets its launcher know of its exception; the name is torch's.

Imported inside the user's workers, and therefore small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.defaults import RECORD, load_default

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    _P = ParamSpec("_P")
    _R = TypeVar("_R")


def record(fn: Callable[_P, _R], error_handler: object = None) -> Callable[_P, _R | None]:
    """Decorate a worker's main function so that the launcher learns of its exception.

    The exception is written to the error file and raised again. A `ChildFailedError`, from a
    launcher that runs inside `fn`, hands its first failure up as it is. `sys.exit(0)` returns
    None; any other `SystemExit` passes and is not recorded. Works without a launcher as well.

    Args:
        fn: called with its own arguments; decorate one function per process.
        error_handler: what writes the error file, as torch's `ErrorHandler`; None writes it in
            torch's format.
    """
    recorded: Callable[_P, _R | None] = load_default(RECORD)(fn, error_handler)
    return recorded
