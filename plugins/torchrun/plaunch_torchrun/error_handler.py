"""Reporting the failure of a worker: `record` and `ErrorHandler`, with torch's names.

Workers import it, so it is small.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import TYPE_CHECKING, Any, overload

from plaunch.errors import UsageError
from plaunch.process import ChildFailedError, ErrorFileError, read_error_file

from plaunch_torchrun.error_files import (
    describe_exception,
    describe_failure,
    has_exit_reason,
    mark_not_retryable,
    write_error_file,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import ParamSpec, TypeAlias, TypeVar

    from plaunch.process import ProcessFailure

    _P = ParamSpec("_P")
    _R = TypeVar("_R")
    _Exceptions: TypeAlias = type[Exception] | tuple[type[Exception], ...]


class ErrorHandler:
    """Writes an exception into the error file that `TORCHELASTIC_ERROR_FILE` names.

    Without that variable, or when it is empty, nothing is written. Subclasses override
    `initialize`, `record_exception` and `record_success`, and may override `_get_error_file_path`.
    No method raises if a file cannot be written, because that would hide the reported failure.

    The launcher calls `maybe_enrich_signal_failure_message` of `get_error_handler()`, which a site
    may replace, for a failure report. The names are torch's, as of 2.15.
    """

    _fn_name: str | None = None  # of the decorated function; subclasses read it

    def set_entrypoint_fn_name(self, fn_name: str | None) -> None:
        """Keep the qualified name of the function that `record` decorates.

        Called before `initialize`; None if the function has no name, as a `functools.partial`.
        """
        self._fn_name = fn_name

    def initialize(self) -> None:
        """Prepare this process; called once, before the user's code.

        Turns faulthandler on, so that a fatal signal leaves the stacks of all threads on stderr.
        """
        import faulthandler  # workers only

        try:
            faulthandler.enable(all_threads=True)
        except (RuntimeError, OSError, ValueError, AttributeError) as error:
            # stderr is closed, or has no descriptor (in a notebook or a test runner).
            _logger().warning("faulthandler is off in this process: %s", error)

    def record_exception(self, e: BaseException) -> None:
        """Write `e`, its traceback and the time into the error file."""
        path = self._get_error_file_path()
        if path:
            self._write(path, describe_exception(e, time.time_ns()))

    def record_success(self) -> None:
        """Called after the decorated function has returned; this class only logs it.

        An exception of a subclass here ends the worker without being recorded.
        """
        # A worker that has not imported logging has configured no level that would show it.
        if self._fn_name and "logging" in sys.modules:
            _logger().debug("%s returned", self._fn_name)

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """Return the text for a worker that a signal ended, for a failure report.

        A subclass may add information, such as a fault of the device. Called in the launcher of the
        worker's node, possibly several times for one failure; this class adds nothing.

        Args:
            message: the worker's traceback or message, or a sentence about the signal.
            error_file: the path of the worker's error file, or `"<N/A>"`.
        """
        return message

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Add the exit code that the launcher saw to the content of a worker's error file.

        It is added beside the message text, as in torch; in the flat form, whose message is a
        string, at the top level.
        """
        message = rootcause_error.get("message")
        if message is None:
            _logger().warning(
                "error file %r has no 'message' field; exit code %d is not added to it",
                rootcause_error_file,
                error_code,
            )
            return
        (message if isinstance(message, dict) else rootcause_error)["errorCode"] = error_code

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a worker's error file to that of this process, with the worker's exit code.

        This reports the root cause to the program that started this process, such as a scheduler.
        """
        try:
            data = read_error_file(rootcause_error_file)
        except ErrorFileError as error:
            _logger().error("the root cause cannot be copied: %s", error)
            return
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, data, error_code)
        path = self._get_error_file_path()
        if path:
            self._replace(path, data)
        else:
            _logger().debug("no TORCHELASTIC_ERROR_FILE here to copy %r to", rootcause_error_file)

    def _get_error_file_path(self) -> str | None:
        return os.environ.get("TORCHELASTIC_ERROR_FILE")

    def _replace(self, path: str, data: dict[str, Any]) -> None:
        if os.path.isfile(path) and os.path.getsize(path):
            # A worker that inherited this process's variable may have written here before.
            try:
                earlier = read_error_file(path)["message"]
                earlier = earlier.get("message") if isinstance(earlier, dict) else earlier
                earlier = earlier if isinstance(earlier, str) else ""
            except ErrorFileError as error:
                earlier = str(error)
            _logger().warning("error file %r exists and is replaced; it said: %s", path, earlier)
        self._write(path, data)

    def _write(self, path: str, data: dict[str, Any]) -> None:
        try:
            write_error_file(path, data)
        except OSError as error:
            _logger().warning("error file %r cannot be written: %s", path, error)


def get_error_handler() -> ErrorHandler:
    """Return the default handler of `record` and the launcher; a site may replace this function."""
    return ErrorHandler()


def enrich_signal_failure(message: str, error_file: str) -> str:
    """Replace `message` of a failure report by that of the handler of `get_error_handler`."""
    handler = get_error_handler()
    return str(handler.maybe_enrich_signal_failure_message(message, error_file))


@overload
def record(
    fn: Callable[_P, _R],
    error_handler: ErrorHandler | None = None,
    *,
    not_retryable: _Exceptions = (),
) -> Callable[_P, _R | None]: ...


@overload
def record(
    fn: None = None,
    error_handler: ErrorHandler | None = None,
    *,
    not_retryable: _Exceptions = (),
) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]: ...


def record(
    fn: Callable[_P, _R] | None = None,
    error_handler: ErrorHandler | None = None,
    *,
    not_retryable: _Exceptions = (),
) -> Callable[_P, _R | None] | Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """Decorate a worker's main function to report its exception to the launcher.

    The exception is written to the error file and raised again. For a `ChildFailedError`, from a
    launcher that runs inside `fn`, its first failure is written. `sys.exit(0)` returns None; any
    other `SystemExit` propagates and is not recorded. An error file that `plaunch.worker.give_up`
    or `retry_later` has written during the call is kept. Works without a launcher too.

    Args:
        fn: called with its own arguments; decorate one function per process. Without it, the
            result is the decorator: `@record(not_retryable=ConfigError)`.
        error_handler: writes the error file; by default `get_error_handler()`.
        not_retryable: a class of exceptions, or a tuple of classes, after which a restart would not
            help; the error file marks them as not retryable.

    Raises:
        UsageError: `not_retryable` is something else.
    """
    classes = _classes(not_retryable)
    handler = error_handler or get_error_handler()

    def decorate(fn: Callable[_P, _R]) -> Callable[_P, _R | None]:
        return _recorded(fn, handler, classes)

    return decorate if fn is None else decorate(fn)


def _classes(given: object) -> tuple[type[Exception], ...]:
    """Check and return the value of `not_retryable`."""
    found = []
    for one in given if isinstance(given, tuple) else (given,):
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise UsageError(
                f"not_retryable of record is {given!r}; write a class of exceptions, or a tuple of "
                "them"
            )
        found.append(one)
    return tuple(found)


def _recorded(
    fn: Callable[_P, _R], handler: ErrorHandler, not_retryable: tuple[type[Exception], ...]
) -> Callable[_P, _R | None]:
    # Handlers of torch before 2.15 have neither method.
    is_recent = hasattr(handler, "set_entrypoint_fn_name") and hasattr(handler, "record_success")

    @functools.wraps(fn)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        if is_recent:
            handler.set_entrypoint_fn_name(getattr(fn, "__qualname__", None))
        handler.initialize()
        began = time.time_ns()
        try:
            result = fn(*args, **kwargs)
        except SystemExit as exit_:
            if exit_.code == 0:
                return None
            raise
        except ChildFailedError as error:
            dump_root_cause(error, handler)
            raise
        except Exception as error:
            # The file that the launcher reads; the handler may write to another one.
            path = os.environ.get("TORCHELASTIC_ERROR_FILE")
            if path and has_exit_reason(path, began):
                raise  # while the worker was ending, or its consequence in another process
            handler.record_exception(error)
            if path and isinstance(error, not_retryable):
                _mark(path, error)
            raise
        # Outside of `try`, because its exception is not a failure of `fn`.
        if is_recent:
            handler.record_success()
        return result

    return wrapper


def _mark(path: str, error: Exception) -> None:
    try:
        mark_not_retryable(path, error)
    except OSError as failed:
        _logger().warning("error file %r cannot be written: %s", path, failed)


def dump_root_cause(error: ChildFailedError, error_handler: ErrorHandler | None = None) -> None:
    """Write the first failure of `error` to this process's own error file.

    Called by the launcher at the end of a failed job, and by `record`. If the worker's error file
    does not exist, its exit and the last lines of its stderr are written. Does nothing without
    `TORCHELASTIC_ERROR_FILE`.
    """
    handler = error_handler or get_error_handler()
    failure = error.get_first_failure()[1]
    if os.path.isfile(failure.error_file) and failure.has_reply:
        handler.dump_error_file(failure.error_file, failure.exitcode)
        return
    path = handler._get_error_file_path()
    if path:
        data = _root_cause_data(failure)
        handler.override_error_code_in_rootcause_data(path, data, failure.exitcode)
        ErrorHandler()._replace(path, data)  # not `handler`, which may be torch's


def _root_cause_data(failure: ProcessFailure) -> dict[str, Any]:
    """Return the content of the worker's error file, or without one, the described failure."""
    if failure.has_reply:
        import copy  # failures only

        return copy.deepcopy(failure.error_file_data)
    nanoseconds = round(failure.timestamp * 1e6) * 1000  # the precision of the float
    sentence = failure.describe_exit() if failure.oom_killed else failure.text
    data = describe_failure(sentence, nanoseconds, "\n".join(failure.last_lines))
    return {**failure.error_file_data, **data}


def _logger() -> logging.Logger:
    import logging  # rare paths only

    return logging.getLogger("plaunch")
