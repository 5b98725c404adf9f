"""Runs a command line, and converts the result to an exit code."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from plaunch import parts
from plaunch.cli.console import STDERR, Stderr
from plaunch.cli.invocation import (
    SILENT,
    Invocation,
    find_command,
    find_command_despite_errors,
)
from plaunch.cli.parser import parse
from plaunch.cli.stdin import read_script
from plaunch.cli.stdout import STDOUT
from plaunch.errors import (
    ExitCode,
    NodeExcludedError,
    PlaunchError,
    PluginError,
    PluginLoadError,
    SignalException,
    UsageError,
)
from plaunch.process.marks import reported_exit_code
from plaunch.texts import printable_message

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from plaunch.cli.parser import Arguments
    from plaunch.config import LaunchConfig
    from plaunch.options import Option


_QUIET = 1.0  # seconds; a launch that succeeds within them prints nothing


def main(argv: Sequence[str] | None = None, *, plugins: Sequence[object] = ()) -> int:
    """Run a command line and return the exit code, printing errors to stderr.

    The process boundary: no exception of plaunch's leaves it. `PLAUNCH_DEBUG=1` adds tracebacks.
    A blocked stderr is waited for a few seconds at most.

    Args:
        argv: the command line without the program's name; by default this process's.
        plugins: plugins for this call alone, beside the installed ones.
    """
    return concluded(lambda: run(sys.argv[1:] if argv is None else argv, plugins=plugins))


def concluded(
    launch: Callable[[], object], say_last: Callable[[str, str], None] | None = None
) -> int:
    """Call `launch`, print an error to stderr if it fails, and return the exit code.

    Args:
        launch: runs the launch or the command.
        say_last: is called with each message that comes after the error, and its level; by default
            it is printed.
    """
    try:
        with STDERR.keeping_last(say_last):
            return _conclude(launch)
    finally:
        STDERR.finish()


def _conclude(launch: Callable[[], object]) -> int:
    try:
        launch()
    except SystemExit as exit_request:
        # A command ran instead of a launch.
        return reported_exit_code(exit_request.code if isinstance(exit_request.code, int) else 1)
    except KeyboardInterrupt:
        _say("interrupted while no worker was running")
        return reported_exit_code(128 + signal.SIGINT)
    except SignalException as error:
        # The agent has logged it; a traceback would add nothing.
        return reported_exit_code(128 + error.sigval)
    except PlaunchError as error:
        # A node that is excluded after its workers failed: their failure comes first.
        cause = error.__cause__ if isinstance(error, NodeExcludedError) else None
        for each in (cause, error):
            if isinstance(each, PlaunchError):
                _print_error(each)
                _write_error_file(each)
        return reported_exit_code(error.exit_code)
    except Exception as error:  # noqa: BLE001 - the process boundary
        _print_bug(error)
        return reported_exit_code(ExitCode.INTERNAL)
    return ExitCode.OK


def run(
    argv: Sequence[str], *, plugins: Sequence[object] = (), is_introduced: bool = False
) -> dict[int, Any]:
    """Run a command line and return each worker's value by global rank.

    The line about a launch that does not succeed at once is left out if the caller has introduced
    it (`is_introduced`).

    Commands such as `--help` and `--doctor` run instead of a launch, and return an empty mapping.

    Raises:
        PlaunchError: as `launch_agent`, and `UsageError` for the command line.
        SystemExit: a command ended with another code than 0.
    """
    command: Option | None
    try:
        args = parse(argv)
    except (UsageError, PluginError) as error:
        STDERR.guess_format(argv, os.environ)
        wanted = find_command_despite_errors(argv, os.environ)
        if wanted is None:
            raise
        command, table = wanted
        invocation = Invocation(None, table, plugins, error)
    else:
        STDERR.set_format(args.log_format, args.color)
        command = find_command(args)
        invocation = Invocation(args, args.table, plugins)
    problems = [] if invocation.args is None else invocation.table.problems
    if command is None or command.dest not in SILENT or problems:
        set_up_logging()
    for problem in problems:
        _log().warning("%s", problem)
    with STDOUT.reserved(is_launch=command is None):
        try:
            if command is None:
                return _launch(invocation, is_introduced=is_introduced)
            code = invocation.table.call(command, command.command, invocation)
        except UsageError as error:
            error.args = (invocation.name_sources(str(error)),)
            raise
    if code:
        raise SystemExit(code)
    return {}


def _launch(invocation: Invocation, *, is_introduced: bool) -> dict[int, Any]:
    # Imports create no garbage; collecting it takes a twentieth of the start-up time.
    collects = gc.isenabled()
    gc.disable()
    try:
        entrypoint, arguments = invocation.command()
        manager = invocation.create_manager()
        config, filled_in = invocation.configure(manager)
        config.stdin = read_script(invocation.parsed(), _log())

        from plaunch._version import __version__  # loaded by now
        from plaunch.launch import launch_agent  # after usage errors
    finally:
        if collects:
            gc.enable()
    STDERR.set_run_id(config.run_id)
    _log().debug("version %s, Python %s (%s)", __version__, sys.version.split()[0], sys.executable)
    STDOUT.hand_over()
    show = STDERR.show if STDERR.can_show() and not STDERR.is_json else None
    introduction: contextlib.AbstractContextManager[Callable[[], None] | None]
    introduction = contextlib.nullcontext()
    if not is_introduced:
        introduction = _log_introduction(invocation.parsed(), config, filled_in)
    with introduction as started:
        return launch_agent(
            config, entrypoint, arguments, manager=manager, show=show, started=started
        )


def _log_introduction(
    args: Arguments, config: LaunchConfig, filled_in: str
) -> contextlib.AbstractContextManager[Callable[[], None] | None]:
    """Log one line about the launch, unless it succeeds at once.

    The context's value is called when workers have started, and starts a thread that writes the
    line in time. Before that, a second thread would slow down the start.
    """
    import logging  # loaded by now

    if not _log().isEnabledFor(logging.INFO):
        return contextlib.nullcontext()
    text = STDERR.format(_introduction(args, config, filled_in), "INFO") + "\n"
    if config.start_method == "fork":
        # A process that forks workers must have no other threads.
        STDERR.write(text)
        return contextlib.nullcontext()
    return STDERR.holding(text, _QUIET)


def _introduction(args: Arguments, config: LaunchConfig, filled_in: str) -> str:
    """Return one line: run id, workers, nodes, and the sources of settings.

    `filled_in` names the source of options that plugins have filled in.
    """
    low, high = config.min_nodes, config.max_nodes
    nodes = f"{low} to {high} nodes" if low < high else f"{high} {'node' if high == 1 else 'nodes'}"
    workers = f"{config.nproc_per_node} {'worker' if config.nproc_per_node == 1 else 'workers'}"
    if high > 1:
        endpoint = f" at {config.rdzv_endpoint}" if config.rdzv_endpoint else ""
        workers, nodes = f"{workers} here", f"{nodes}, {config.rdzv_backend}{endpoint}"
    items = [
        f"run id {config.run_id}: {workers}, {nodes}",
        *(f"settings from {file}" for file in args.settings_files),
        filled_in,
    ]
    if "OMP_NUM_THREADS" in config.worker_env:
        items.append("sets OMP_NUM_THREADS=1")
    return "; ".join(filter(None, items))


def _log() -> logging.Logger:
    import logging  # loaded by now

    return logging.getLogger("plaunch")


def set_up_logging() -> None:
    """Log plaunch's messages of the level `LOGLEVEL` and above to stderr.

    Raises:
        UsageError: there is no such level.
    """
    import logging  # not for --help

    logger = logging.getLogger("plaunch")
    if logger.handlers:
        return

    class Formatter(logging.Formatter):
        """Formats records with `STDERR`."""

        def format(self, record: logging.LogRecord) -> str:
            return STDERR.format(super().format(record), record.levelname, record.created)

    class Handler(logging.StreamHandler[Stderr]):
        """Keeps records about the whole launch for its end, below the report of a failure."""

        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "is_last", False):
                STDERR.say_last(record.getMessage(), record.levelname)
            else:
                super().emit(record)

    handler = Handler(STDERR)
    handler.setFormatter(Formatter())
    logger.addHandler(handler)
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    if level not in logging._nameToLevel:
        raise UsageError(
            f"variable LOGLEVEL is {level!r}; write one of DEBUG, INFO, WARNING, ERROR, CRITICAL"
        )
    logger.setLevel(level)
    logger.propagate = False


def _print_error(error: PlaunchError) -> None:
    if os.environ.get("PLAUNCH_DEBUG") == "1":
        _write_traceback(error)
    elif (for_console := getattr(error, "for_console", None)) and not STDERR.is_json:
        _say(for_console())
    elif isinstance(error, UsageError):
        _say(f"error: {error}")
    else:
        _say(str(error))


def _write_error_file(error: PlaunchError) -> None:
    """Write the first failure to the error file of an outer launcher, as torchrun does."""
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return
    from plaunch.process.child_failed import ChildFailedError  # failures

    if isinstance(error, ChildFailedError):
        try:
            parts.load_part(parts.WRITE_ERROR_FILE)(error)
        except PluginLoadError as missing:
            _say(f"the first failure is not handed up: {missing}")


def _print_bug(error: Exception) -> None:
    is_bug = not _has_too_many_files(error)
    if is_bug or os.environ.get("PLAUNCH_DEBUG") == "1":
        _write_traceback(error)
    if not is_bug:
        # The failed import may be that of the code that explains this error elsewhere.
        from plaunch.capacity import TOO_MANY_FILES  # errors only

        _say(TOO_MANY_FILES)
        return
    from plaunch.errors import text_of_error  # errors only

    what = f"{type(error).__name__}: {text_of_error(error)}"
    _say(
        f"internal error: {what}. This is a fault of plaunch or of a plugin, not of the workers; "
        "please report it with the traceback above"
    )


def _has_too_many_files(error: BaseException | None) -> bool:
    """Whether an exception comes from reaching a limit of open files."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write_traceback(error: Exception) -> None:
    import traceback

    text = "".join(traceback.format_exception(error))
    if STDERR.is_json:
        _say(text.rstrip())
        return
    STDOUT.flush()
    STDERR.write(printable_message(text))


def _say(message: str) -> None:
    STDOUT.flush()
    STDERR.say(message)
