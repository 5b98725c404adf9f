"""`record`, with which a worker reports its exception to its launcher; the name is torch's.

Imported in the user's workers, and therefore small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from plaunch.parts import RECORD, load_part

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeAlias, TypeVar

    _P = ParamSpec("_P")
    _R = TypeVar("_R")
    _Exceptions: TypeAlias = type[Exception] | tuple[type[Exception], ...]


@overload
def record(
    fn: Callable[_P, _R], error_handler: object = None, *, not_retryable: _Exceptions = ()
) -> Callable[_P, _R | None]: ...


@overload
def record(
    fn: None = None, error_handler: object = None, *, not_retryable: _Exceptions = ()
) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]: ...


def record(
    fn: Callable[..., Any] | None = None,
    error_handler: object = None,
    *,
    not_retryable: _Exceptions = (),
) -> Callable[..., Any]:
    """Decorate a worker's main function so that the launcher learns its exception.

    The exception is written to the error file and raised again. For a `ChildFailedError`, from a
    launcher that runs inside `fn`, its first failure is written. `sys.exit(0)` returns None; any
    other `SystemExit` is raised and not recorded. What `plaunch.worker.give_up` or `retry_later`
    has written is kept. Works without a launcher as well.

    Args:
        fn: the function; decorate one per process. Without it, the result is the decorator:
            `@record(not_retryable=ConfigError)`.
        error_handler: writes the error file, as torch's `ErrorHandler`; None writes torch's format.
        not_retryable: a class of exceptions, or a tuple of them, after which another start cannot
            help. The error file says so.

    Raises:
        UsageError: `not_retryable` has another type.
    """
    recorded: Callable[..., Any] = load_part(RECORD)(fn, error_handler, not_retryable=not_retryable)
    return recorded
