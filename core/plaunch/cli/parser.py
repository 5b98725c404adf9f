"""The options of the command line, in torchrun's words.

Parsing stops at the script: what follows it is never looked at. An option may be spelt with dashes
or underscores, is never abbreviated, and has a default from its `PET_*` variable as in torchrun.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, NoReturn

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

_DESCRIPTION = (
    "Start workers on this node, give each its rank and the world, watch them and restart them. "
    "Options and environment are torchrun's; every option also has a variable PET_<NAME>."
)
_EPILOG = (
    "Exit code: 0 on success, a failed worker's own code, 128+n for signal n, 2 for bad usage, "
    "110 and above for the launcher's own failures (see docs/errors.md)."
)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into a usage error of one line."""
        raise UsageError(message)


def parse(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> argparse.Namespace:
    """Parse a command line without the program's name.

    Raises:
        UsageError: an option is unknown or its value is malformed, here or in a variable.
        SystemExit: after `--help` and `--version`, with code 0.
    """
    parser = build_parser(os.environ if environ is None else environ)
    options, command = split(parser, argv)
    args = parser.parse_args(options)
    args.training_script = command[0] if command else None
    args.training_script_args = command[1:]
    return args


def split(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cut `argv` before the script; option names come back with dashes for underscores.

    The script is the first word that is neither an option nor an option's value, or the first word
    after `--`.
    """
    takes_value = {
        name: action.nargs != 0 for action in parser._actions for name in action.option_strings
    }
    options: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            return options, list(argv[position + 1 :])
        if not word.startswith("-") or word == "-":
            return options, list(argv[position:])
        position += 1
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")
            options.append(name + equals + value)
        else:
            name = word[:2]
            equals = word[2:]
            options.append(word)
        if name not in takes_value:
            raise _unknown_option(name, takes_value)
        if takes_value[name] and not equals and position < len(argv):
            # Joined, so that a value that begins with a dash is still a value.
            value = argv[position]
            options[-1] = f"{name}={value}" if name.startswith("--") else name + value
            position += 1
    return options, []


def build_parser(environ: Mapping[str, str]) -> Parser:
    """Build the parser, with defaults from the `PET_*` variables in `environ`."""
    parser = Parser(
        prog="plaunch",
        usage="plaunch [options] script [arguments of the script]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = _Adder(parser, environ)

    group = parser.add_argument_group("nodes and workers")
    add.value(
        group,
        "--nnodes",
        default="1:1",
        metavar="N or MIN:MAX",
        help="number of nodes, or a range of it (default: 1:1)",
    )
    add.value(
        group,
        "--nproc-per-node",
        default="1",
        metavar="N or NAME",
        help="workers on this node: a number, or a device counter such as cpu, gpu, xpu, auto "
        "(default: 1)",
    )
    add.value(group, "--node-rank", type=_integer, metavar="N", help=_NODE_RANK)
    add.value(
        group, "--role", default="default", metavar="NAME", help="name of the workers, for logs"
    )
    add.value(
        group, "--local-addr", metavar="ADDR", help="address of this node, if not the one found"
    )

    group = parser.add_argument_group("rendezvous")
    add.value(
        group,
        "--rdzv-backend",
        default="static",
        metavar="NAME",
        help="how nodes find each other: static, c10d, or a plugin's (default: static)",
    )
    add.value(
        group,
        "--rdzv-endpoint",
        default="",
        metavar="HOST[:PORT]",
        help="where the backend is; for c10d, one of the nodes",
    )
    add.value(
        group,
        "--rdzv-id",
        default="none",
        metavar="ID",
        help="id of the job, the same on all nodes (default: none; on one node, made up)",
    )
    add.value(group, "--rdzv-conf", default="", metavar="K=V,...", help="options of the backend")
    add.flag(
        group,
        "--standalone",
        help="one node on its own, on a free port of loop-back; overrides the rendezvous options",
    )
    add.value(
        group,
        "--master-addr",
        metavar="ADDR",
        help="address of node 0, for the static backend (default: 127.0.0.1)",
    )
    add.value(
        group,
        "--master-port",
        type=_port,
        metavar="PORT",
        help="port of the workers' store on node 0, for the static backend (default: a free one "
        "on one node, 29500 on several)",
    )

    group = parser.add_argument_group("the script")
    add.flag(group, "-m", "--module", help="the script is a module: run it with python -m")
    add.flag(group, "--no-python", help="the script is a program: run it without python")
    add.flag(group, "--run-path", help="run the script with runpy in a process of start_method")
    add.value(
        group,
        "--start-method",
        default="spawn",
        metavar="METHOD",
        help="how --run-path starts processes: spawn, fork or forkserver (default: spawn)",
    )

    group = parser.add_argument_group("supervision")
    add.value(
        group,
        "--max-restarts",
        type=_integer,
        default=0,
        metavar="N",
        help="how many failures of the job are followed by a restart of all workers (default: 0)",
    )
    add.value(
        group,
        "--monitor-interval",
        type=_number,
        default=0.1,
        metavar="SECONDS",
        help="how often to look at what cannot wake the launcher (default: 0.1)",
    )
    add.value(
        group,
        "--shutdown-timeout",
        type=_number,
        metavar="SECONDS",
        help="time for workers to stop before they are killed, on every path "
        "(default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)",
    )
    add.value(
        group,
        "--exit-barrier-timeout",
        type=_number,
        default=300.0,
        metavar="SECONDS",
        help="time to wait for the other nodes once the workers of this one have succeeded "
        "(default: 300)",
    )
    add.flag(
        group,
        "--keep-daemons",
        help="leave processes alone that workers left behind, if all workers have succeeded",
    )
    add.value(
        group,
        "--signals-to-handle",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        metavar="SIG,...",
        help="signals that stop the job (default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
    )
    add.value(
        group,
        "--signal-policy",
        default="torchrun",
        metavar="NAME",
        help="what signals mean: torchrun (those listed stop the job), notify (some are passed on "
        "to the workers instead), or a plugin's name (default: torchrun)",
    )
    add.value(
        group,
        "--notify-signals",
        metavar="SIG,...",
        help="signals that the policy notify passes on (default: SIGUSR1,SIGUSR2)",
    )

    group = parser.add_argument_group("logs and events")
    add.value(group, "--log-dir", metavar="DIR", help="base folder of log files")
    add.value(
        group,
        "-r",
        "--redirects",
        default="0",
        metavar="STREAMS",
        help="streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, "
        "or by local rank as in 0:3,1-7:1",
    )
    add.value(
        group,
        "-t",
        "--tee",
        default="0",
        metavar="STREAMS",
        help="streams that go to files and to the console; same form",
    )
    add.value(
        group,
        "--local-ranks-filter",
        default="",
        metavar="RANKS",
        help="only show these local ranks on the console, as in 0,8-15",
    )
    add.value(
        group,
        "--log-line-prefix-template",
        metavar="TEXT",
        help="prefix of teed lines; ${role_name} ${local_rank} ${rank} ${hostname} ${attempt} "
        "${time} are replaced (default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else "
        "[${role_name}${local_rank}]:)",
    )
    for stream in ("stdout", "stderr"):
        add.value(
            group,
            f"--duplicate-{stream}-filters",
            type=_words,
            default=[],
            metavar="WORD,...",
            help=f"collect lines of teed {stream} with one of these words in a file of their own; "
            "a doubled comma stands for a comma",
        )
    add.value(
        group,
        "--logs-specs",
        default="default",
        metavar="NAME",
        help="who decides where logs go (default: default)",
    )
    add.value(
        group,
        "--event-log-handler",
        default="null",
        metavar="NAME",
        help="where events go: null, console, or a plugin's name (default: null)",
    )

    group = parser.add_argument_group("plugins and help")
    group.add_argument(
        "-p",
        dest="plugins",
        action="append",
        default=[],
        metavar="NAME",
        help="load plugin NAME; no:NAME blocks it (also in PLAUNCH_PLUGINS)",
    )
    group.add_argument(
        "--list-plugins", action="store_true", help="list all plugins and their state"
    )
    group.add_argument("--version", action="version", version=_version())
    return parser


def _unknown_option(name: str, known: Mapping[str, object]) -> UsageError:
    from plaunch._names import closest  # noqa: PLC0415 - errors only

    close = closest(name, known)
    hint = "" if close is None else f"; did you mean {close}?"
    return UsageError(
        f"there is no option {name}{hint} (options are not abbreviated; the script's own go after "
        "the script; see plaunch --help)"
    )


_NODE_RANK = "index of this node (default: 0 with the static backend, else any that is free)"


class _Adder:
    """Adds options whose defaults come from `PET_*` variables."""

    def __init__(self, parser: Parser, environ: Mapping[str, str]) -> None:
        self._parser = parser
        self._environ = environ

    def value(
        self,
        group: argparse._ArgumentGroup,
        *names: str,
        type: Callable[[str], Any] = str,
        default: object = None,
        **details: Any,
    ) -> None:
        """Add an option with a value."""
        variable, text = self._variable(names)
        if text is not None:
            try:
                default = type(text)
            except argparse.ArgumentTypeError as error:
                raise UsageError(f"variable {variable}: {error}") from None
        group.add_argument(*names, type=type, default=default, **details)

    def flag(self, group: argparse._ArgumentGroup, *names: str, help: str) -> None:
        """Add a flag; its variable takes 0, 1, true and false."""
        variable, text = self._variable(names)
        default = False
        if text is not None:
            if text.lower() not in ("0", "1", "true", "false"):
                raise UsageError(f"variable {variable} is {text!r}; write 0, 1, true or false")
            default = text.lower() in ("1", "true")
        group.add_argument(*names, action="store_true", default=default, help=help)

    def _variable(self, names: Sequence[str]) -> tuple[str, str | None]:
        variable = "PET_" + names[-1].strip("-").replace("-", "_").upper()
        return variable, self._environ.get(variable)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number from 0 to 65535")
    return int(text)


def _words(text: str) -> list[str]:
    words = text.replace(",,", "\0").split(",")
    return [word.replace("\0", ",") for word in words if word]


def _version() -> str:
    import sys  # noqa: PLC0415

    from plaunch._version import __version__  # noqa: PLC0415

    python = ".".join(map(str, sys.version_info[:3]))
    return f"plaunch {__version__} (Python {python}, {sys.executable})"
