"""The components of a context: binders, starters, observers, results, and what an agent shares."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from plaunch.process.children import ExitPoller, Popen
    from plaunch.process.failure import ProcessFailure
    from plaunch.process.stopping.job import Reaper
    from plaunch.process.stopping.stop_sequence import StopStep
    from plaunch.process.streams import OutputStats
    from plaunch.process.watches import HeldProcesses

    # Returns the places of workers, given their process ids by local rank. May block for seconds.
    FindPlaces = Callable[[Mapping[int, int]], Mapping[int, "ExitPlace"]]

START_METHODS = ("spawn", "fork", "forkserver")  # of functions


class Binding(Protocol):
    """The devices and processors of one worker, from its first instruction on."""

    def applied(self) -> AbstractContextManager[None]:
        """Bind the calling thread while it starts the worker, which inherits the binding.

        Other threads are not affected. At the end of the block, the thread has its old binding.

        Raises:
            WorkerStartError: the system refuses.
        """

    def bind(self, pid: int) -> None:
        """Bind a worker that another process has just started, before the worker does anything.

        Raises:
            WorkerStartError: the system refuses.
        """

    def describe(self) -> Mapping[str, str]:
        """Return what `--dry-run` shows, as in `{"cpus": "0-15"}`."""


class Binder(Protocol):
    """Gives the workers of one node their devices and processors, at each start."""

    def plan(self, nprocs: int) -> Mapping[int, Binding]:
        """Return the bindings by local rank; ranks that are not bound are missing.

        Called before the node joins the others, and at every start of its workers. In a launch it
        runs on a thread that ends with the call.

        Raises:
            UsageError: a worker cannot have its binding.
        """

    def environment(self, local_rank: int, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables that show a worker its devices; they may override plaunch's.

        Args:
            local_rank: the local rank of the worker.
            environ: its other variables.

        Raises:
            UsageError: it has devices that do not exist.
        """


def is_asked_for(numa_options: object, devices: object, virtual_local_rank: object) -> bool:
    """Whether any of these settings asks for devices or processors."""
    return numa_options is not None or devices is not None or bool(virtual_local_rank)


def default_binder(
    numa_options: object = None, devices: object = None, virtual_local_rank: bool = False
) -> Binder | None:
    """Return the binder for these settings; None if they ask for no binding.

    Raises:
        UsageError: a setting cannot be used.
    """
    if not is_asked_for(numa_options, devices, virtual_local_rank):
        return None
    from plaunch.parts import BINDER, load_part  # only where workers are bound

    binder: Binder = load_part(BINDER)(numa_options, devices, virtual_local_rank)
    return binder


class Starter(Protocol):
    """Starts the processes of a launch's workers; `begin` is called first and `close` last.

    In each round `wait` is called, then `prepare`, then `start` for each worker, unless workers
    have a stdin of their own. Only `wait` may block. A round may end before its workers are
    started. `str` of a starter says in one line how it starts workers, for `--dry-run`, which
    calls no method. A class that derives from this one needs `start` only.
    """

    def begin(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Begin to prepare in the background; the node has not joined the others yet.

        Args:
            command: the command of the first worker, before macros are replaced; empty if workers
                are forked from the launcher, which does not call `start`.
            environ: the variables of the workers, as far as they are known.
        """
        return

    def wait(self) -> Mapping[str, float]:
        """Wait until workers can be started, within a bound.

        Called on its own thread once a round has formed, possibly at the same time as `close`.

        Returns:
            What took time: seconds by name.
        """
        return {}

    def prepare(self, envs: Mapping[int, Mapping[str, str]]) -> None:
        """Receive the complete environments of a round's workers, by local rank."""
        return

    def start(
        self,
        local_rank: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: int | None,
        stderr: int | None,
        pass_fds: Sequence[int] = (),
        binding: Binding | None = None,
    ) -> Popen | None:
        """Start a worker as leader of a new session, as `subprocess.Popen` does.

        The worker gets the arguments, environment and descriptors that are given here, and no
        others. It has the current working folder and umask of this process, and the limits and
        signal dispositions that this process had at `begin`.

        Args:
            local_rank: the local rank of the worker.
            command: the program and its arguments.
            env: its complete environment.
            stdout: a descriptor, or None for the launcher's own.
            stderr: the same for stderr.
            pass_fds: more descriptors, which keep their numbers.
            binding: binds the worker before it does anything.

        Returns:
            A child of this process, which only its own `poll` reaps; None makes plaunch execute
            the command itself.

        Raises:
            WorkerStartError: the worker cannot be bound, and was not started.
            OSError: the system does not execute the program.
        """

    def start_helper(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
    ) -> Popen | None:
        """Start a Python program of the launcher, such as the workers' store, while workers run.

        Called on the agent's loop, between `prepare` and `close`. The process leads a new session.

        Args:
            command: the interpreter, the path of the program, and its arguments.
            env: its complete environment.
            stdin: the descriptor of its standard input.
            stdout: that of its standard output.
            stderr: that of its standard error.
            pass_fds: more descriptors, which keep their numbers.

        Returns:
            A child of this process; None makes plaunch execute the command itself, which is right
            for a starter that has nothing loaded.
        """
        del command, env, stdin, stdout, stderr, pass_fds
        return None

    def fds(self) -> Collection[int]:
        """Return the descriptors that a fork of the launcher must close."""
        return ()

    def close(self) -> None:
        """Release every process, thread and descriptor; workers keep running.

        Ends a `wait` in progress. May be called more than once, and without `begin`.
        """
        return


@plain_dataclass
class WorkerInfo(Value):
    """One worker as plugins see it. `pid` is None before it is started.

    Without an agent, only the local rank and the pid are known; the other numbers are -1.
    """

    local_rank: int
    global_rank: int
    role_rank: int
    world_size: int
    role_world_size: int
    pid: int | None = None


def unranked_worker(local_rank: int, pid: int) -> WorkerInfo:
    """Describe a worker of a context without an agent."""
    return WorkerInfo(local_rank, -1, -1, -1, -1, pid)


@plain_dataclass
class WorkerExit(Value):
    """How one worker ended.

    Args:
        worker: the worker.
        exitcode: its exit code, negative for a signal (-9 for SIGKILL).
        stopped: whether the context or the agent ended it.
        failure: why it failed, if it did. Its last lines are complete after the stop that follows.
        timestamp: when its exit was seen, in seconds since the epoch.
    """

    worker: WorkerInfo
    exitcode: int
    stopped: bool
    failure: ProcessFailure | None = None
    timestamp: float = 0.0

    @property
    def local_rank(self) -> int:
        """The worker's local rank."""
        return self.worker.local_rank

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return self.worker.pid

    @property
    def succeeded(self) -> bool:
        """Whether the worker ended by itself, and has not failed."""
        return not (self.stopped or self.exitcode or self.failure)


class WorkerResults:
    """The results of programs, which send nothing; a subclass receives those of functions."""

    def begin(self, nprocs: int, poller: ExitPoller) -> None:
        """Prepare for `nprocs` workers, whose messages must wake `poller`.

        Raises:
            OSError: the system refuses.
        """

    def receive(self) -> None:
        """Read what the workers have sent so far; called repeatedly, and returns quickly."""

    def take(self, local_rank: int, exitcode: int) -> str:
        """Read the rest of what a worker sent that has ended by itself.

        Returns:
            Why the worker has failed although its exit code is 0; empty if it has not.
        """
        del local_rank, exitcode
        return ""

    def has_failed(self, local_rank: int) -> bool:
        """Whether a running worker has sent an invalid result."""
        del local_rank
        return False

    def has_returned(self, local_rank: int) -> bool:
        """Whether a running worker has sent its result, and only has to exit."""
        del local_rank
        return False

    def values(self, nprocs: int) -> dict[int, Any]:
        """Return the return values by local rank; called once all workers have succeeded."""
        return dict.fromkeys(range(nprocs))

    def close(self) -> None:
        """Release everything; called when all workers are gone."""


class WorkerObserver(Protocol):
    """Is notified of exits and stops, once all workers of a context have been started.

    Called on the thread that uses the context. The methods must neither raise nor block.
    """

    def on_exit(self, exit: WorkerExit) -> None:
        """Called when a worker has just ended; the last lines of its failure are not known yet."""

    def on_stop_step(self, step: StopStep) -> None:
        """Called when the stop sequence has taken a step."""


class ExitPlace(NamedTuple):
    """Where a worker is that has not exited.

    Args:
        is_exiting: whether its main thread has left the program, and ends the interpreter; None if
            unknown.
        has_raised: whether the interpreter has printed an exception that the program did not catch;
            None if unknown.
        place: where the main thread is, such as `threading._shutdown`; empty if unknown.
        reason: why its stack cannot be read; empty if it was.
        hold: what holds it besides the kernel, such as `at a prompt of pdb`; empty if nothing does.
    """

    is_exiting: bool | None = None
    has_raised: bool | None = None
    place: str = ""
    reason: str = ""
    hold: str = ""


def find_places_by_stack(pids: Mapping[int, int]) -> Mapping[int, ExitPlace]:
    """Find the places with the stacks of the workers, if the part for it is installed."""
    from plaunch.parts import EXIT_PLACES, find_part  # workers that do not exit only

    find: FindPlaces | None = find_part(EXIT_PLACES)
    return {} if find is None else find(pids)


@plain_dataclass
class ExitRules(Value):
    """What a context does about workers that do not exit.

    Args:
        exception_timeout: seconds after an exception until the worker counts as failed; None if it
            never does.
        find_places: finds out where workers are, on a thread of its own; None if nothing does.
        advice: what a user can do about a job that waits, for the message; may be empty.
    """

    exception_timeout: float | None = None
    find_places: FindPlaces | None = find_places_by_stack
    advice: str = ""


def _new_holds() -> HeldProcesses:
    from plaunch.process.watches import HeldProcesses  # command lines come here for less

    return HeldProcesses()


@plain_dataclass
class ContextComponents(Value):
    """The objects that an agent gives to each of its contexts.

    Args:
        reaper: ends the orphans of the workers; the agent closes it. By default, the context
            creates and closes its own.
        stats: counts the output of all contexts. Its owner waits for a slow console at the end
            of the run; without one, `close` does.
        starter: starts the processes of workers that are not forked from this process.
        private_fds: descriptors of this process that a forked worker must close.
        observer: is notified of exits and stops.
        holds: records since when workers have been suspended.
        worker_info: what is known of the worker with this local rank and pid.
        exit_rules: what to do about workers that do not exit.
        stdin: what each program reads from its stdin; None for the stdin of this process.
    """

    reaper: Reaper | None = None
    stats: OutputStats | None = None
    starter: Starter | None = None
    private_fds: Sequence[int] = ()
    observer: WorkerObserver | None = None
    holds: HeldProcesses = field(default_factory=_new_holds)
    worker_info: Callable[[int, int], WorkerInfo] = unranked_worker
    exit_rules: ExitRules = field(default_factory=ExitRules)
    stdin: bytes | None = None
