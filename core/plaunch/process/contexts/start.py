"""`start_processes`, which creates and starts a process context; the name is torchrun's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.errors import UsageError
from plaunch.parts import FUNCTIONS, load_part
from plaunch.process.contexts.arguments import worker_args, worker_envs
from plaunch.process.contexts.subprocess_context import SubprocessContext
from plaunch.process.streams.logs import default_logs_specs
from plaunch.process.streams.std import Std

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.process.binding import Binder
    from plaunch.process.contexts.components import ContextComponents
    from plaunch.process.contexts.supervised import SupervisedContext
    from plaunch.process.streams.logs import LogsSpecs


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str | os.PathLike[str],
    args: Mapping[int, Any],
    envs: Mapping[int, Mapping[str, Any]] | None = None,
    logs_specs: LogsSpecs | None = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: object = None,
    duplicate_stdout_filters: Sequence[str] | None = None,
    duplicate_stderr_filters: Sequence[str] | None = None,
    *,
    log_dir: str | os.PathLike[str] | None = None,
    redirects: Std | Mapping[int, Std] = Std.NONE,
    tee: Std | Mapping[int, Std] = Std.NONE,
    shutdown_timeout: float = SHUTDOWN_TIMEOUT,
    handle_signals: bool = True,
    binder: Binder | None = None,
    components: ContextComponents | None = None,
) -> SupervisedContext:
    """Start one worker per local rank, and return their context.

    There are as many workers as entries in `args`. Both forms of torchrun's call work: with
    `logs_specs`, or with `log_dir`, `redirects` and `tee`.

    Args:
        name: what the workers are; part of the default console prefix.
        entrypoint: a function, or the path or name of a program.
        args: the arguments by local rank, 0 to n-1; a bare string is one argument.
        envs: variables to add to the environment by local rank, or None for no variables.
        logs_specs: decides where streams go; a path means `log_dir`, as in older torchrun.
        log_line_prefixes: console prefixes of teed streams; by default `[<name><local_rank>]:`.
        start_method: `spawn`, `fork` or `forkserver`, for functions. `forkserver` is
            multiprocessing's own, unless a `starter` is given.
        numa_options: how workers are bound to processors near their devices, as `NumaOptions` or
            torch's; None does not bind.
        duplicate_stdout_filters: teed lines that contain one of these are also collected in a file.
        duplicate_stderr_filters: the same for stderr.
        log_dir: base directory for log files.
        redirects: the streams that go to files, for all or by local rank.
        tee: the streams that go to files and to the console.
        shutdown_timeout: seconds between the soft signal and SIGKILL, unless `close` gets another
            number.
        handle_signals: whether to install torchrun's handlers, which raise `SignalException`. False
            if an agent handles signals.
        binder: binds workers to processors and devices; by default as `numa_options` say.
        components: what an agent shares with its contexts.

    Raises:
        RankMappingError: a mapping does not name exactly the local ranks.
        UsageError: an argument is invalid.
        LogDirectoryError: the log directory cannot be used.
        WorkerStartError: a worker cannot be started; the others have been stopped.
    """
    if isinstance(logs_specs, (str, os.PathLike)):
        if log_dir is not None:
            raise UsageError(f"log_dir is given twice: {os.fspath(logs_specs)!r} and {log_dir!r}")
        logs_specs, log_dir = None, logs_specs
    if logs_specs is not None and (log_dir is not None or redirects or tee):
        raise UsageError("give either logs_specs, or log_dir, redirects and tee, but not both")
    # Check what the caller gave before anything is created for it.
    arguments = worker_args(args)
    common: dict[str, Any] = {
        "name": name,
        "args": arguments,
        "envs": worker_envs(envs, len(arguments)),
        "logs_specs": logs_specs,
        "close_logs": False,
        "log_line_prefixes": log_line_prefixes,
        "duplicate_stdout_filters": duplicate_stdout_filters,
        "duplicate_stderr_filters": duplicate_stderr_filters,
        "shutdown_timeout": shutdown_timeout,
        "handle_signals": handle_signals,
        "numa_options": numa_options,
        "binder": binder,
        "components": components,
    }
    if logs_specs is None:
        common.update(logs_specs=default_logs_specs(log_dir, redirects, tee), close_logs=True)
    context: SupervisedContext
    if isinstance(entrypoint, (str, os.PathLike)):
        context = SubprocessContext(entrypoint=os.fspath(entrypoint), **common)
    else:
        context = load_part(FUNCTIONS)(entrypoint=entrypoint, start_method=start_method, **common)
    context.start()
    return context
