"""Writing the JSON file in which a worker says why it failed; the core reads it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from plaunch.process import ErrorFileError, read_error_file, text_of_error

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEXT_CHARS = 256 << 10  # of the message, and of the traceback, that is written


def write_error_file(path: str, data: dict[str, Any]) -> None:
    """Write an error file such that a reader sees all of it or nothing.

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
    """What an error file says about `error`; `now_ns` is the time of the failure, as below."""
    import traceback  # failures only

    summary = traceback.TracebackException(type(error), error, error.__traceback__)
    text = f"{type(error).__name__}: {text_of_error(error)}"
    return describe_failure(_cut(text), now_ns, _cut("".join(summary.format())))


def describe_failure(text: str, now_ns: int, callstack: str = "") -> dict[str, Any]:
    """What an error file says, in torch's nested form.

    `now_ns` is the time of the failure, in nanoseconds since the epoch.
    """
    extra = {"timestamp": str(now_ns // 1_000_000_000), "timestamp_ns": now_ns}
    if callstack:
        extra["py_callstack"] = callstack
    return {"message": {"message": text, "extraInfo": extra}}


def write_word(path: str, text: str, callstack: str, traits: Mapping[str, object]) -> None:
    """Write what a worker says when it ends by its own wish.

    Args:
        path: its error file.
        text: the reason.
        callstack: where it said so.
        traits: what it says of another start, as torch's format has it beside the message.

    Raises:
        OSError: it cannot be written.
    """
    data = describe_failure(_cut(text), time.time_ns(), _cut(callstack))
    write_error_file(path, {**data, "errorTraits": dict(traits)})


def mark_not_retryable(path: str, error: BaseException) -> None:
    """Add to what was written of `error` that another start would not help.

    If nothing was written, which a handler of the user's own may do, it is described here.

    Raises:
        OSError: it cannot be written.
    """
    try:
        data = read_error_file(path)
    except ErrorFileError:
        data = describe_exception(error, time.time_ns())
    write_error_file(path, {**data, "errorTraits": {"retryability": "False"}})


def has_word(path: str, since_ns: int) -> bool:
    """Whether a worker has said something of another start since then (nanoseconds)."""
    try:
        data = read_error_file(path)
    except ErrorFileError:
        return False
    message = data["message"]
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    written = extra.get("timestamp_ns") if isinstance(extra, dict) else None
    return "errorTraits" in data and isinstance(written, int) and written >= since_ns


def _cut(text: str) -> str:
    """Keep the two ends of a long text: how it started, and the last call and the error."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
