"""From a command line to a launch, and from how it ended to an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from plaunch.cli.parser import parse
from plaunch.cli.stderr import STDERR
from plaunch.errors import ExitCode, PlaunchError, SignalException, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None, *, plugins: Sequence[object] = ()) -> int:
    """Run a command line and return the exit code, printing errors to stderr.

    The process boundary: no exception of plaunch's leaves it. `PLAUNCH_DEBUG=1` adds tracebacks.
    A stderr that takes nothing is waited for a few seconds at most.

    Args:
        argv: the command line without the program's name; by default this process's.
        plugins: plugins for this call alone, beside the installed ones.
    """
    try:
        run(sys.argv[1:] if argv is None else argv, plugins=plugins)
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

    `--list-plugins` prints the list and returns nothing.

    Raises:
        PlaunchError: what `launch_agent` raises, and `UsageError` for the command line.
        SystemExit: after `--help` and `--version`, with code 0.
    """
    args = parse(argv)
    _set_up_logging()
    if args.list_plugins:
        from plaunch.plugin.listing import format_plugins, list_plugins  # noqa: PLC0415

        sys.stdout.write(format_plugins(list_plugins(plugins, words=args.plugins)))
        return {}
    return _launch(args, plugins)


def _launch(args: argparse.Namespace, plugins: Sequence[object]) -> dict[int, Any]:
    from plaunch.cli.command import worker_command  # noqa: PLC0415 - not for --help

    entrypoint, entrypoint_args = worker_command(args)

    from plaunch.cli.settings import config_from_args  # noqa: PLC0415 - after usage errors
    from plaunch.launch import launch_agent  # noqa: PLC0415
    from plaunch.plugin.manager import PluginManager  # noqa: PLC0415

    manager = PluginManager.create(plugins, words=args.plugins)
    config = config_from_args(args, manager)
    return launch_agent(config, entrypoint, entrypoint_args, manager=manager)


def _set_up_logging() -> None:
    import logging  # noqa: PLC0415 - not for --help

    logger = logging.getLogger("plaunch")
    if logger.handlers:
        return
    handler = logging.StreamHandler(STDERR)
    handler.setFormatter(logging.Formatter("plaunch: %(message)s"))
    logger.addHandler(handler)
    level = os.environ.get("LOGLEVEL", "WARNING").upper()
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
    from plaunch.process.error_handler import dump_root_cause  # noqa: PLC0415 - failures only
    from plaunch.process.failures import ChildFailedError  # noqa: PLC0415

    if isinstance(error, ChildFailedError):
        dump_root_cause(error)


def _print_bug(error: Exception) -> None:
    _write(_traceback_of(error))
    _say(
        f"internal error: {type(error).__name__}: {error}. This is a fault of plaunch or of a "
        "plugin, not of the workers; please report it with the traceback above"
    )


def _traceback_of(error: Exception) -> str:
    import traceback  # noqa: PLC0415

    return "".join(traceback.format_exception(error))


def _say(message: str) -> None:
    _write(f"plaunch: {message}\n")


def _write(text: str) -> None:
    if sys.stdout is not None:
        with contextlib.suppress(OSError):  # nobody is left to read it
            sys.stdout.flush()
    STDERR.write(text)
