"""From a command line to a launch, and from how it ended to an exit code."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from plaunch.cli.invocation import Invocation, call_command, command_in_spite, given_command
from plaunch.cli.parser import as_given, parse
from plaunch.cli.stderr import STDERR
from plaunch.cli.stdout import STDOUT
from plaunch.errors import ExitCode, PlaunchError, PluginError, SignalException, UsageError

if TYPE_CHECKING:
    import argparse
    import logging
    from collections.abc import Callable, Iterator, Sequence

    from plaunch.config import LaunchConfig
    from plaunch.plugin.manager import PluginManager


# One of these is set where there may be something to say of who has started this launcher.
_STARTED_BY = ("SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")


def main(argv: Sequence[str] | None = None, *, plugins: Sequence[object] = ()) -> int:
    """Run a command line and return the exit code, printing errors to stderr.

    The process boundary: no exception of plaunch's leaves it. `PLAUNCH_DEBUG=1` adds tracebacks.
    A stderr that takes nothing is waited for a few seconds at most.

    Args:
        argv: the command line without the program's name; by default this process's.
        plugins: plugins for this call alone, beside the installed ones.
    """
    return concluded(lambda: run(sys.argv[1:] if argv is None else argv, plugins=plugins))


def concluded(launch: Callable[[], object]) -> int:
    """Call `launch`, and say how it ended, if it was not well, on stderr; returns the exit code."""
    try:
        launch()
    except SystemExit as exit_request:
        # argparse, after --help and --version.
        return _exit_code(exit_request.code if isinstance(exit_request.code, int) else 1)
    except KeyboardInterrupt:
        _say("interrupted while no worker was running")
        return _exit_code(128 + signal.SIGINT)
    except SignalException as error:
        # The agent has said what it did; a traceback would add nothing.
        return _exit_code(128 + error.sigval)
    except PlaunchError as error:
        _print_error(error)
        _hand_up(error)
        return _exit_code(error.exit_code)
    except Exception as error:  # noqa: BLE001 - the process boundary
        _print_bug(error)
        return _exit_code(ExitCode.INTERNAL)
    finally:
        STDERR.finish()
    return ExitCode.OK


def run(argv: Sequence[str], *, plugins: Sequence[object] = ()) -> dict[int, Any]:
    """Run a command line and return each worker's value by global rank.

    Options such as `--list-plugins` and `--doctor` print something instead and return nothing.

    Raises:
        PlaunchError: what `launch_agent` raises, and `UsageError` for the command line.
        SystemExit: after `--help` and `--version`, with code 0; after an option that does something
            instead of launching, with its code, if that is not 0.
    """
    try:
        args = parse(argv)
    except UsageError as error:
        wanted = command_in_spite(argv, os.environ)
        if wanted is None:
            raise
        set_up_logging()
        with STDOUT.reserved(is_launch=False):
            option, table = wanted
            invocation = Invocation(None, table, os.environ, plugins, error)
            raise SystemExit(call_command(option, invocation)) from error
    set_up_logging()
    for problem in args.table.problems:
        _log().warning("%s", problem)
    command = given_command(args)
    try:
        with STDOUT.reserved(is_launch=command is None and args.dry_run is None):
            if command is None:
                return _launch(args, plugins)
            invocation = Invocation(args, args.table, os.environ, plugins)
            if code := call_command(command, invocation):
                raise SystemExit(code)
            return {}
    except UsageError as error:
        error.args = (as_given(str(error), args),)
        raise


def _launch(args: argparse.Namespace, plugins: Sequence[object]) -> dict[int, Any]:
    # Nothing that is imported becomes garbage; looking for it takes a twentieth of a start.
    collects = gc.isenabled()
    gc.disable()
    try:
        from plaunch.cli.command import worker_command  # noqa: PLC0415 - not for --help

        entrypoint, entrypoint_args = worker_command(args)

        from plaunch.cli.allocation import allocate  # noqa: PLC0415 - after usage errors
        from plaunch.cli.settings import config_from_args  # noqa: PLC0415
        from plaunch.plugin.manager import PluginManager  # noqa: PLC0415

        manager = PluginManager.create(plugins, words=args.plugins, entries=args.table.entries)
        with _naming_culprits(manager):
            taken = allocate(args, manager)
            config = config_from_args(args, manager)
            if args.dry_run is not None:
                _print_plan(args, config, entrypoint, entrypoint_args, manager)
                return {}

        from plaunch.cli.live import live_line  # noqa: PLC0415 - not for a plan
        from plaunch.launch import launch_agent  # noqa: PLC0415
    finally:
        if collects:
            gc.enable()
    _introduce(args, config, taken)
    STDOUT.hand_over()
    with _naming_culprits(manager):
        return launch_agent(
            config, entrypoint, entrypoint_args, manager=manager, show=live_line(STDERR)
        )


@contextlib.contextmanager
def _naming_culprits(manager: PluginManager) -> Iterator[None]:
    """Run what calls plugins; what they raise without being asked by name is theirs.

    `sys.exit` of theirs is no end of a launch, and nobody else calls it in plaunch's own process.
    """
    from plaunch.plugin.calls import one_line  # noqa: PLC0415 - loaded by now
    from plaunch.process.launcher_variables import owns_process  # noqa: PLC0415

    try:
        yield
    except PlaunchError:
        raise
    except (Exception, SystemExit) as error:
        who = None if manager.culprits is None else manager.culprits.of_error(error)
        if who is not None:
            raise PluginError(f"{who} failed: {one_line(error)}") from error
        if isinstance(error, Exception) or not owns_process():
            raise
        raise PluginError(
            f"somebody has called sys.exit({error.code!r}) in the launcher; PLAUNCH_DEBUG=1 shows "
            "where"
        ) from error


def _print_plan(
    args: argparse.Namespace,
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str,
    entrypoint_args: list[str],
    manager: PluginManager,
) -> None:
    from plaunch.cli.plan import make_plan  # noqa: PLC0415 - not on the way to a launch

    plan = make_plan(args, config, entrypoint, entrypoint_args, manager)
    if args.dry_run == "json":
        import json  # noqa: PLC0415

        _print(json.dumps(plan, indent=2) + "\n")
        return
    from plaunch.cli.plan_text import format_plan  # noqa: PLC0415

    _print(format_plan(plan))


def _print(text: str) -> None:
    """Write to stdout, also what came as bytes that are no text."""
    encoding = STDOUT.stream.encoding or "utf-8"
    STDOUT.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _introduce(args: argparse.Namespace, config: LaunchConfig, taken: str) -> None:
    """Say in one line what is started, with what, and how nodes meet; then what was `taken`.

    And what is odd about who has started this launcher.
    """
    from plaunch._version import __version__  # noqa: PLC0415 - loaded by now

    nodes = f"{config.min_nodes} to {config.max_nodes}"
    if config.min_nodes == config.max_nodes:
        nodes = str(config.max_nodes)
    endpoint = f" at {config.rdzv_endpoint}" if config.rdzv_endpoint else ""
    _log().info(
        "version %s, Python %s (%s): nodes: %s, workers on this one: %d, backend %s%s, run id %s",
        __version__,
        ".".join(map(str, sys.version_info[:3])),
        sys.executable,
        nodes,
        config.nproc_per_node,
        config.rdzv_backend,
        endpoint,
        config.run_id,
    )
    for text in filter(None, (args.settings_file and f"settings from {args.settings_file}", taken)):
        _log().info("%s", text)

    if not any(variable in os.environ for variable in _STARTED_BY):
        return
    from plaunch.cli.surroundings import offer_scheduler, warn_of_hasty_stop  # noqa: PLC0415

    if offer := offer_scheduler(args, os.environ):
        _log().info("%s", offer)
    if warning := warn_of_hasty_stop(config.shutdown_timeout, os.environ):
        _log().warning("%s", warning)


def _log() -> logging.Logger:
    import logging  # noqa: PLC0415 - loaded by now

    return logging.getLogger("plaunch")


def set_up_logging() -> None:
    """Show plaunch's messages on stderr, from the level on that `LOGLEVEL` says.

    Raises:
        UsageError: there is no such level.
    """
    import logging  # noqa: PLC0415 - not for --help

    logger = logging.getLogger("plaunch")
    if logger.handlers:
        return
    handler = logging.StreamHandler(STDERR)
    handler.setFormatter(logging.Formatter("plaunch: %(message)s"))
    logger.addHandler(handler)
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    if level not in logging._nameToLevel:
        raise UsageError(
            f"variable LOGLEVEL is {level!r}; write one of DEBUG, INFO, WARNING, ERROR, CRITICAL"
        )
    logger.setLevel(level)
    logger.propagate = False


def _exit_code(code: int) -> int:
    if os.environ.get("PLAUNCH_EXIT_CODE") == "torchrun" and code not in (0, 2):
        return 1
    return code


def _print_error(error: PlaunchError) -> None:
    if os.environ.get("PLAUNCH_DEBUG") == "1":
        _write(_traceback_of(error))
    elif isinstance(error, UsageError):
        _say(f"error: {error}")
    else:
        _say(str(error))


def _hand_up(error: PlaunchError) -> None:
    """Tell whoever launched us why workers failed, as torchrun does."""
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return
    from plaunch.process.failures.child_failed import ChildFailedError  # noqa: PLC0415
    from plaunch.process.failures.error_handler import dump_root_cause  # noqa: PLC0415 - failures only

    if isinstance(error, ChildFailedError):
        dump_root_cause(error)


def _print_bug(error: Exception) -> None:
    _write(_traceback_of(error))
    from plaunch.process.failures.error_file import text_of_error  # noqa: PLC0415 - errors only

    what = f"{type(error).__name__}: {text_of_error(error)}"
    _say(
        f"internal error: {what}. This is a fault of plaunch or of a plugin, not of the workers; "
        "please report it with the traceback above"
    )


def _traceback_of(error: Exception) -> str:
    import traceback  # noqa: PLC0415

    return "".join(traceback.format_exception(error))


def _say(message: str) -> None:
    _write(f"plaunch: {message}\n")


def _write(text: str) -> None:
    STDOUT.flush()
    STDERR.write(text)
