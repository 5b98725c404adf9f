"""The JSON file in which a worker says why it failed, and `record`, with which it does.

The format is torch's. plaunch adds one field, `timestamp_ns` beside torch's `timestamp`: torch
reads the latter with `int()` and would refuse a fraction. Imported in the user's workers, and
therefore small.
"""

from __future__ import annotations

import math
import os
import stat
from typing import TYPE_CHECKING, Any, overload

from plaunch.errors import PlaunchError
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


MAX_READ_BYTES = 8 << 20


class ErrorFileError(PlaunchError, ValueError):
    """An error file that cannot be read or parsed; the message says why."""


def read_error_file(path: str) -> dict[str, Any]:
    """Read an error file of any origin; its `message` is a string or an object.

    Raises:
        ErrorFileError: it cannot be read, is larger than `MAX_READ_BYTES`, or does not have the
            format (a worker that was killed while writing leaves half a file).
    """
    import json  # failures only

    try:
        raw = _read_bounded(path)
    except OSError as error:
        raise ErrorFileError(f"error file {path!r} cannot be read: {error}") from error
    if not raw.strip():
        raise ErrorFileError(f"error file {path!r} is empty")
    if len(raw) > MAX_READ_BYTES:
        raise ErrorFileError(
            f"error file {path!r} is larger than {MAX_READ_BYTES >> 20} MiB and was not read"
        )
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ErrorFileError(
            f"error file {path!r} is not valid JSON, or was cut off: {error}"
        ) from error
    if not isinstance(data, dict) or not isinstance(data.get("message"), (str, dict)):
        raise ErrorFileError(f"error file {path!r} has no 'message' field as torch's format has")
    return data


def text_of(message: str | dict[str, Any]) -> str:
    """Return the error itself, without the traceback: `"ValueError: bad shape"`."""
    if isinstance(message, str):
        return message
    text = message.get("message")
    return text if isinstance(text, str) else ""


def traceback_of(message: str | dict[str, Any]) -> str:
    """Return the Python traceback that the worker recorded; empty if there is none."""
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    text = extra.get("py_callstack") if isinstance(extra, dict) else None
    return text if isinstance(text, str) else ""


def timestamp_of(data: dict[str, Any], written_at: float, now: float) -> float:
    """Return the time of a failure, in seconds since the epoch; `now` if the file has none.

    torch records whole seconds, which would put a failure before an earlier one of the same second.
    If the time at which the file was written (`written_at`) matches, its fraction is used.
    """
    message = data["message"]
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        fields = extra if isinstance(extra, dict) else {}
    else:
        fields = data
    precise = _number(fields.get("timestamp_ns")) / 1e9
    if precise > 0:
        return min(precise, now)
    seconds = _number(fields.get("timestamp"))
    if seconds <= 0:
        return now
    if seconds.is_integer() and seconds <= written_at < seconds + 2:
        seconds = written_at
    return min(seconds, now)


def _read_bounded(path: str) -> bytes:
    # Not blocking, and regular files only: a named pipe would block the launcher forever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path!r} is not a regular file")
        return file.read(MAX_READ_BYTES + 1)


def _number(value: object) -> float:
    """Return `value` as a float; 0 if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return 0.0
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0
