"""Writing a worker's error file; the core reads it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from plaunch.process import ErrorFileError, read_error_file, text_of_error

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEXT_CHARS = 256 << 10  # of the message, and of the traceback


def write_error_file(path: str, data: dict[str, Any]) -> None:
    """Write an error file atomically.

    A target that cannot be replaced (a device, a pipe, a file that is mounted by itself such as
    Kubernetes' `/dev/termination-log`) is written in place.

    Raises:
        OSError: it cannot be written.
    """
    import json  # failures only

    text = json.dumps(data, default=str)
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        _write(target, text)
        return
    scratch = f"{target}.{os.getpid()}.tmp"
    try:
        _write(scratch, text)
        os.replace(scratch, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        _write(target, text)


def describe_exception(error: BaseException, now_ns: int) -> dict[str, Any]:
    """Return the content of an error file about `error`; see `describe_failure` for `now_ns`."""
    import traceback  # failures only

    summary = traceback.TracebackException(type(error), error, error.__traceback__)
    text = f"{type(error).__name__}: {text_of_error(error)}"
    return describe_failure(_cut(text), now_ns, _cut("".join(summary.format())))


def describe_failure(text: str, now_ns: int, callstack: str = "") -> dict[str, Any]:
    """Return the content of an error file, in torch's nested form.

    `now_ns` is the time of the failure, in nanoseconds since the epoch.
    """
    extra = {"timestamp": str(now_ns // 1_000_000_000), "timestamp_ns": now_ns}
    if callstack:
        extra["py_callstack"] = callstack
    return {"message": {"message": text, "extraInfo": extra}}


def write_exit_reason(path: str, text: str, callstack: str, traits: Mapping[str, object]) -> None:
    """Write the error file of a worker that ends on purpose.

    Args:
        path: its error file.
        text: the reason.
        callstack: the stack of the call.
        traits: `errorTraits` of torch's format, which say whether to restart it.

    Raises:
        OSError: it cannot be written.
    """
    data = describe_failure(_cut(text), time.time_ns(), _cut(callstack))
    write_error_file(path, {**data, "errorTraits": dict(traits)})


def mark_not_retryable(path: str, error: BaseException) -> None:
    """Mark the written error as not retryable.

    If the user's handler has written nothing, `error` is written here.

    Raises:
        OSError: it cannot be written.
    """
    try:
        data = read_error_file(path)
    except ErrorFileError:
        data = describe_exception(error, time.time_ns())
    write_error_file(path, {**data, "errorTraits": {"retryability": "False"}})


def has_exit_reason(path: str, since_ns: int) -> bool:
    """Whether a worker has written `errorTraits` since a time in nanoseconds."""
    try:
        data = read_error_file(path)
    except ErrorFileError:
        return False
    message = data["message"]
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    written = extra.get("timestamp_ns") if isinstance(extra, dict) else None
    return "errorTraits" in data and isinstance(written, int) and written >= since_ns


def _cut(text: str) -> str:
    """Shorten a long text to its beginning and its end, which has the last call and the error."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
