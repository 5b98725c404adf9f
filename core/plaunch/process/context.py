"""The base class of process contexts, whose workers are started, waited for and closed together.

`PContext` has torchrun's name and meaning. A subclass with torchrun's methods only (`_start`,
`_poll`, `pids` and `_close`) is polled.
"""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from plaunch.durations import PATIENCE, PERIOD, SHUTDOWN_TIMEOUT
from plaunch.errors import RankMappingError, SignalException, UsageError
from plaunch.parts import STOP_SIGNALS, load_part
from plaunch.process.logs import own_logs_specs, read_dest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from plaunch.process.components import WorkerExit
    from plaunch.process.logs import LogsDest, LogsSpecs
    from plaunch.process.outcomes import RunProcsResult
    from plaunch.process.streams import Streams

_FAILED_START_GRACE = 1.0  # seconds for the workers that run when another one cannot be started


class StopSignalHandler(Protocol):
    """The signal handlers of a context that is used without an agent."""

    def install(self) -> None:
        """Install them, on the main thread."""

    def restore(self) -> None:
        """Restore the previous ones."""

    def held(self) -> AbstractContextManager[None]:
        """Defer signals to the end of the block, which then raises `SignalException`."""


class PContext(abc.ABC):
    """A set of worker processes; the name and the template methods are torchrun's.

    Args:
        logs_specs: decides where the streams go; its `reify` is called once, in the constructor.
        close_logs: whether the context closes the logs spec. False if an agent uses it for several
            contexts.

    All other arguments are those of `start_processes`.

    Raises:
        RankMappingError: a mapping does not name exactly the local ranks 0 to n-1.
        UsageError: `shutdown_timeout` cannot be used, or a variable cannot be given to a process.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, Any],
        envs: Mapping[int, Mapping[str, Any]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        *,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT,
        handle_signals: bool = True,
        close_logs: bool = False,
    ) -> None:
        PATIENCE.check(shutdown_timeout, "shutdown_timeout")
        self.name = name
        self.entrypoint = entrypoint
        self.args = worker_args(args)
        self.nprocs = len(self.args)
        self.envs = worker_envs(envs, self.nprocs)
        logs_specs = own_logs_specs(logs_specs)
        given = logs_specs.reify(self.envs)
        validate_ranks("stdouts", given.stdouts, self.nprocs)
        validate_ranks("stderrs", given.stderrs, self.nprocs)
        dest = read_dest(given)
        self.envs = worker_envs(self.envs, self.nprocs)  # a logs spec may have added any value
        self.stdouts = dest.stdouts
        self.stderrs = dest.stderrs
        self.error_files = dest.error_files
        self.shutdown_timeout = shutdown_timeout
        self._logs_dest = dest
        self._logs_specs = logs_specs
        self._logs_to_close = logs_specs if close_logs else None
        self._log_line_prefixes = {
            rank: (log_line_prefixes or {}).get(rank, f"[{name}{rank}]:") for rank in args
        }
        self._stdout_filters = tuple(duplicate_stdout_filters or ())
        self._stderr_filters = tuple(duplicate_stderr_filters or ())
        self._handle_signals = handle_signals
        self._stop_signals: StopSignalHandler | None = None
        self._is_started = False

    def start(self) -> None:
        """Start all workers.

        With `handle_signals`, on the main thread, this first installs handlers for the signals in
        `TORCHELASTIC_SIGNALS_TO_HANDLE`, which raise `SignalException`; `close` restores the
        previous ones. If a worker cannot be started, the others have at most a second to stop:
        they have not done much, and an agent handles no signal before `start` returns.

        Raises:
            UsageError: the context was started before, or a worker cannot be bound to processors.
            WorkerStartError: a worker cannot be started; `ProgramNotFoundError` and
                `ProgramNotExecutableError` are the usual causes.
        """
        if self._is_started:
            raise UsageError(
                f"the workers of {self.name!r} were already started; make a new context"
            )
        self._is_started = True
        if self._handle_signals:
            stop_signals: StopSignalHandler = load_part(STOP_SIGNALS)(self.escalate)
            self._stop_signals = stop_signals
            stop_signals.install()
        with self._closed_after_errors():
            self._start()

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all workers have succeeded or one has failed, at most `timeout` seconds.

        Args:
            timeout: seconds; 0 does not wait, and a negative number waits without a limit.
            period: seconds between two polls where exits do not wake this process.

        Returns:
            The result, or None if the workers still run.

        Raises:
            SignalException: a handled signal arrived; the workers still run, and the caller should
                `close` with that signal.
            UnkillableWorkerError: a worker had to be stopped, and survived SIGKILL.
        """
        PERIOD.check(period, "period")
        if not timeout < 0:
            PATIENCE.check(timeout, "timeout")
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            result = self._poll()
            if result is not None:
                return result
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            self._idle(remaining, period)

    def close(self, death_sig: signal.Signals | None = None, timeout: float | None = None) -> None:
        """Stop the workers that run, and release everything; may be called more than once.

        Args:
            death_sig: the soft signal; None means SIGTERM.
            timeout: seconds until SIGKILL; None means the context's `shutdown_timeout`.

        An interrupt (Ctrl-C, or what a signal handler raises) skips the grace, and is raised when
        no worker is left.

        Raises:
            UnkillableWorkerError: a worker survived SIGKILL; everything else is released.
        """
        try:
            timeout = self.shutdown_timeout if timeout is None else max(timeout, 0.0)
            PATIENCE.check(timeout, "timeout")
            self._close(death_sig=death_sig or signal.SIGTERM, timeout=timeout)
        except UsageError:
            raise
        except BaseException:
            if self._must_stop():  # it came before the stop had begun, which would handle it
                self.escalate()
                self._close(death_sig=death_sig or signal.SIGTERM, timeout=0.0)
            raise
        finally:
            if self._stop_signals is not None:
                self._stop_signals.restore()

    def exit_fds(self) -> list[int] | None:
        """Return the descriptors that become readable when `wait(0)` has something to do.

        They stay the same from `start` to `close`. None means that the context must be polled, as
        a subclass written for torchrun must.
        """
        return None

    def take_exits(self) -> list[WorkerExit]:
        """Return the exits seen since the last call, in order; empty if none are recorded."""
        return []

    def send_signal(self, local_rank: int, signum: signal.Signals) -> None:
        """Send a signal to one worker, but not to its children.

        Args:
            local_rank: of a worker whose exit `take_exits` has not returned.
            signum: the signal.

        Raises:
            PermissionError: it runs as another user.
        """
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(self.pids()[local_rank], signum)

    def escalate(self) -> None:  # noqa: B027 - most subclasses have none
        """Skip the rest of the grace of the stop in progress, or of the next one.

        May be called from a signal handler on the thread that uses the context. A subclass written
        for torchrun ignores it.
        """

    @abc.abstractmethod
    def pids(self) -> dict[int, int]:
        """Return the process ids of the workers by local rank."""

    @abc.abstractmethod
    def _start(self) -> None:
        """Start the workers; called once."""

    @abc.abstractmethod
    def _poll(self) -> RunProcsResult | None:
        """Return the result without waiting; None while workers run and none has failed.

        After a failure, the other workers are stopped before this returns.
        """

    @abc.abstractmethod
    def _close(self, death_sig: signal.Signals, timeout: float = SHUTDOWN_TIMEOUT) -> None:
        """Stop the workers that still run: `death_sig`, `timeout` seconds, SIGKILL."""

    def _must_stop(self) -> bool:
        """Whether an interrupted `close` has left workers; False if the context cannot know."""
        return False

    def _idle(self, remaining: float | None, period: float) -> None:
        """Wait between two polls, at most `remaining` seconds if that is not None."""
        time.sleep(period if remaining is None else min(period, remaining))

    @contextlib.contextmanager
    def _closed_after_errors(self) -> Iterator[None]:
        """Close the context if the block raises; the start has then failed, or was interrupted."""
        try:
            yield
        except BaseException as error:
            is_failure = isinstance(error, Exception) and not isinstance(error, SignalException)
            self.close(
                timeout=min(self.shutdown_timeout, _FAILED_START_GRACE) if is_failure else None
            )
            raise

    def _open_streams(self, dest: LogsDest, **options: Any) -> Streams:
        """Open the streams of all workers; `options` are those of `LogsSpecs.open_streams`."""
        return self._logs_specs.open_streams(
            dest,
            self.nprocs,
            prefixes=self._log_line_prefixes,
            stdout_filters=self._stdout_filters,
            stderr_filters=self._stderr_filters,
            **options,
        )


# --- values by local rank -------------------------------------------------------------------------


def validate_ranks(what: str, by_rank: Mapping[int, Any], nprocs: int) -> None:
    """Check that `by_rank` names exactly the local ranks 0 to `nprocs` - 1.

    Raises:
        RankMappingError: it does not; the message lists the missing and the surplus ranks.
    """
    if not isinstance(by_rank, Mapping):
        raise RankMappingError(
            f"{what} is {by_rank!r}; it must map each local rank to its own value, as in {{0: ...}}"
        )
    expected = range(nprocs)
    missing = [rank for rank in expected if rank not in by_rank]
    surplus = sorted((rank for rank in by_rank if rank not in expected), key=repr)
    if missing or surplus:
        found = " and ".join(
            f"{label} {', '.join(map(repr, ranks))}"
            for label, ranks in (("lacks", missing), ("has", surplus))
            if ranks
        )
        raise RankMappingError(
            f"{what} must name the local ranks 0 to {nprocs - 1} and no others; it {found}"
        )


def worker_args(args: Mapping[int, Any]) -> dict[int, tuple[Any, ...]]:
    """Return the arguments by local rank as tuples; a bare string is one argument, as are bytes.

    Raises:
        RankMappingError: `args` is empty, or does not name exactly the local ranks 0 to n-1.
        UsageError: a rank's arguments are neither a sequence nor a string.
    """
    validate_ranks("args", args, _size(args))
    if not args:
        raise RankMappingError("args names no local rank, so there is no worker to start")
    return {rank: _argument_tuple(rank, args[rank]) for rank in range(len(args))}


def _size(value: object) -> int:
    return len(value) if isinstance(value, Mapping) else 0


def _argument_tuple(rank: int, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)):
        return (value,)
    if isinstance(value, Iterable):
        return tuple(value)
    raise UsageError(
        f"args[{rank}] is {value!r}; write the arguments of a worker as a tuple, ({value!r},)"
    )


def worker_envs(
    envs: Mapping[int, Mapping[str, Any]] | None, nprocs: int
) -> dict[int, dict[str, str]]:
    """Copy the variables by local rank with all values as strings; None means no variables.

    Raises:
        RankMappingError: `envs` does not name exactly the local ranks 0 to `nprocs` - 1.
        UsageError: a name or a value cannot be given to a process.
    """
    if envs is None:
        return {rank: {} for rank in range(nprocs)}
    validate_ranks("envs", envs, nprocs)
    return {
        rank: {
            _variable_name(rank, name): variable_value(rank, name, value)
            for name, value in (envs[rank] or {}).items()
        }
        for rank in range(nprocs)
    }


def _variable_name(rank: int, name: Any) -> str:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise UsageError(
            f"envs[{rank}] has the name {name!r}, which cannot be used in an environment"
        )
    return name


def variable_value(rank: int, name: str, value: Any) -> str:
    """Return the value of a variable as a string; bytes and paths are decoded.

    Raises:
        UsageError: the value is None or has a NUL character.
    """
    if value is None:
        raise UsageError(f"envs[{rank}][{name!r}] is None; leave the variable out or give a value")
    text = os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else str(value)
    if "\0" in text:
        raise UsageError(
            f"envs[{rank}][{name!r}] has a NUL character, which cannot be used in an environment"
        )
    return text
