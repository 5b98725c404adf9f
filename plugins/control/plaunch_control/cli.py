"""The command line of `plaunchctl`."""

from __future__ import annotations

import argparse
import os
import sys

from plaunch.lazy import TYPE_CHECKING

from plaunch_control.client import (
    LIST_PATIENCE,
    PATIENCE,
    ClientError,
    ForeignError,
    GoneError,
    RefusedError,
    SilentError,
    WithdrawnError,
)
from plaunch_control.launches import NoSuchJobError, choose, find_foreign, find_launches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from plaunch_control.launches import Launch

DONE, REFUSED, USAGE, NO_JOB, NO_ANSWER, FOREIGN, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

_EPILOG = """\
JOB is a run id, the beginning of one, or the pid of a launcher; it may be left out if there is one
launch only. exit codes: 0 done, 1 refused or not possible, 2 usage, 3 no such job or several,
4 no answer, 5 another user's; of `wait`, that of the launch
"""


def entry_point() -> None:
    """Run `main` as the program `plaunchctl`."""
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = REFUSED
    sys.exit(code)


def main(argv: Sequence[str]) -> int:
    """Run a command line, and return the exit code."""
    options = create_parser().parse_args(argv)
    user = os.geteuid()
    try:
        from plaunch_control import commands  # after usage errors

        launches, problems = find_launches(os.environ, user)
        for problem in problems:
            _complain(f"{problem}; launches there are not shown")
        if options.command == "ps":
            return commands.ps(launches, options)
        launch = choose(launches, options.job)
        try:
            return commands.COMMANDS[options.command](launch, options)
        except ClientError as error:
            return _report(launch, error, options.timeout)
    except NoSuchJobError as error:
        foreign = find_foreign(options.job, user) if options.job else ""
        _complain(
            f"{foreign} has this run id; only its user may control it" if foreign else str(error)
        )
        return FOREIGN if foreign else NO_JOB


def _report(launch: Launch, error: ClientError, seconds: float) -> int:
    if isinstance(error, RefusedError):
        _complain(f"{launch}: {error}")
        return REFUSED
    if isinstance(error, ForeignError):
        _complain(f"{launch}: {error}")
        return FOREIGN
    if isinstance(error, SilentError):
        text = f"{launch} did not answer within {seconds:g} s: it is suspended, or gets no CPU time"
        if isinstance(error, WithdrawnError):
            text += "; the request is withdrawn and will not be carried out"
        _complain(text)
    elif isinstance(error, GoneError):
        _complain(f"{launch} has ended")
    else:
        _complain(f"{launch}: {error}")
    return NO_ANSWER


def _complain(text: str) -> None:
    from plaunch.texts import printable  # after usage errors

    sys.stderr.write(f"plaunchctl: {printable(text)}\n")


def _seconds(text: str) -> float:
    from plaunch.durations import Duration  # if it is given

    try:
        return Duration(least=0.1, most=3600.0, has_units=True).parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _PrintCompletion(argparse.Action):
    """Print the completion script for a shell, and exit."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        del namespace, option_string
        from plaunch_control.completion import UnavailableError, completion_script

        try:
            sys.stdout.write(completion_script(parser, str(values)))
        except UnavailableError as error:
            _complain(str(error))
            sys.exit(REFUSED)
        sys.exit(DONE)


def create_parser() -> argparse.ArgumentParser:
    """Create the parser of all commands and their options."""
    parser = argparse.ArgumentParser(
        prog="plaunchctl",
        description="Show and control the launches of this host and user.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh", "fish"),
        help="print the completion script for a shell, and exit",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *, job: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        if name == "signal":
            command.add_argument("signal", metavar="SIGNAL", help="such as SIGUSR1")
        if job:
            command.add_argument("job", nargs="?", metavar="JOB", help="which launch")
        command.add_argument("--json", action="store_true", help="write JSON")
        patience = LIST_PATIENCE if name == "ps" else PATIENCE
        command.set_defaults(timeout=patience)
        if name != "wait":
            command.add_argument(
                "--timeout",
                type=_seconds,
                default=patience,
                metavar="SECONDS",
                help=f"how long to wait for the answer of a launch (default: {patience:g})",
            )
        return command

    add("ps", "list all launches", job=False)
    add("status", "show the state of one launch")
    stacks = add("stacks", "show the stacks of the workers, grouped")
    stacks.add_argument("--ranks", metavar="RANKS", help="global ranks, such as 0-3,8")
    logs = add("logs", "show the log files of the workers")
    logs.add_argument("--rank", metavar="RANKS", help="global ranks, such as 3 or 0-3")
    logs.add_argument("-f", "--follow", action="store_true", help="continue with new output")
    logs.add_argument("--grep", metavar="PATTERN", help="only lines with this regular expression")
    send = add("signal", "send a signal to the workers of this node, without stopping them")
    send.add_argument("--ranks", metavar="RANKS", help="global ranks, such as 0-3,8")
    for name, text in (
        ("stop", "end the job, on all nodes if they know each other"),
        ("restart", "restart all workers; not counted against --max-restarts"),
        ("leave", "let the job continue without this node"),
    ):
        command = add(name, text)
        command.add_argument("--reason", metavar="TEXT", help="a reason for the log")
        if name == "stop":
            command.add_argument(
                "--all-nodes",
                action="store_true",
                help="refuse if only this node can be stopped from here",
            )
    events = add("events", "show the events of a launch")
    events.add_argument("-f", "--follow", action="store_true", help="continue with new events")
    add("wait", "wait for the end of a launch, and exit with its code")
    return parser
