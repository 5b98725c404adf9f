"""All options of the core, as data for the parser, completion and reports.

Names, variables and defaults are torchrun's where it has the option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.cli.console import COLORS, FORMATS
from plaunch.durations import EXIT_BARRIER_TIMEOUT, LIMIT, PATIENCE, PERIOD
from plaunch.options import Option, integer, port_range, seconds, words
from plaunch.plugin import kinds
from plaunch.process.components import START_METHODS
from plaunch.process.signals import DEFAULT_SIGNALS

if TYPE_CHECKING:
    from typing import Any


def max_restarts(text: str) -> int | str:
    """Parse a number of restarts; a list with numbers for causes stays a text."""
    if "," not in text and ":" not in text:
        return integer(text)
    from plaunch.restarts import format_budgets, parse_budgets  # if given

    return format_budgets(*parse_budgets(text))


def _component(kind: kinds.Kind[Any], text: str, **more: Any) -> Option:
    """Return the option that selects plugins of this kind by name."""
    shape = {"default": kind.default, "metavar": "NAME", "plugins": kind.name, **more}
    return Option((kind.flag,), text, **shape)


NODES = (
    Option(
        ("--nnodes",),
        "number of nodes, or a range of it (default: 1:1)",
        default="1:1",
        metavar="N or MIN:MAX",
    ),
    _component(
        kinds.DEVICE_COUNTS,
        "workers on this node: a number, or a device counter such as cpu, gpu, xpu, auto "
        "(at most 65536; default: 1)",
        default="1",
        metavar="N or NAME",
    ),
    Option(
        ("--node-rank",),
        "index of this node (default: 0 with the static backend, else any free index)",
        metavar="N",
        read=integer,
        is_shared=True,
    ),
    Option(
        ("--role",),
        "role of the workers, for logs (default: default)",
        "default",
        metavar="NAME",
        is_shared=True,
    ),
    Option(
        ("--local-addr",),
        "address of this node (default: detected automatically)",
        metavar="ADDR",
        is_shared=True,
    ),
)
RENDEZVOUS = (
    _component(
        kinds.RENDEZVOUS,
        "rendezvous backend: static, c10d, etcd-v2, or a plugin's name (default: static)",
    ),
    Option(
        ("--rdzv-endpoint",),
        "address of the rendezvous backend: one of the nodes for c10d, the members for etcd",
        default="",
        metavar="HOST[:PORT]",
    ),
    Option(
        ("--rdzv-id",),
        "run id of the job, the same on all nodes (default: none; generated if there is one node)",
        default="none",
        metavar="ID",
    ),
    Option(
        ("--job-id",),
        "id that the job keeps when it is started again under another run id; workers read it from "
        "PLAUNCH_JOB_ID (default: the scheduler's job id, else the run id)",
        metavar="ID",
        is_shared=True,
    ),
    Option(("--rdzv-conf",), "options of the rendezvous backend", default="", metavar="K=V,..."),
    Option(
        ("--standalone",),
        "run on this node alone, on a free loopback port; overrides the rendezvous options",
        read=None,
    ),
    Option(
        ("--master-addr",),
        "address of node 0, for the static backend (default: 127.0.0.1)",
        metavar="ADDR",
        is_shared=True,
    ),
    Option(
        ("--master-port",),
        "port of the workers' store on node 0, for the static backend (default: a free one on one "
        "node, 29500 on several)",
        metavar="PORT",
        read=integer,  # only where it is used must it be a port, as in torchrun
        is_shared=True,
    ),
    Option(
        ("--port-range",),
        "range of the ports that plaunch picks on this node (default: any free port)",
        metavar="A-B",
        read=port_range,
        is_shared=True,
    ),
    Option(
        ("--start-timeout",),
        "time limit until the first worker of this node runs, including all waits (default: no "
        "limit; --rdzv-conf join_timeout limits the wait for other nodes)",
        metavar="SECONDS",
        read=seconds(LIMIT),
        is_shared=True,
    ),
)
SCRIPT = (
    Option(
        ("-m", "--module"),
        "run the script as a module, with python -m",
        read=None,
        is_shared=True,
    ),
    Option(
        ("--no-python",),
        "run the script as a program, without python",
        read=None,
    ),
    Option(
        ("--run-path",),
        "run the script with runpy, in a process started by --start-method",
        read=None,
        is_shared=True,
    ),
    Option(
        ("--start-method",),
        "how --run-path starts processes: spawn, fork or forkserver (default: spawn)",
        default="spawn",
        metavar="METHOD",
        choices=START_METHODS,
        is_shared=True,
    ),
)
SUPERVISION = (
    Option(
        ("--max-restarts",),
        "maximum number of restarts of all workers after failures; causes may have their own, as "
        "in 3,hang:1,node:inf; with 0 and a fixed --nnodes, a lost node ends the job, unless "
        "another one waits for its place (default: 0)",
        default=0,
        metavar="N[,CAUSE:N,...]",
        read=max_restarts,
    ),
    _component(
        kinds.RESTART_POLICIES,
        "policy that decides on restarts: standard, always, never, or a plugin's name (default: "
        "standard)",
    ),
    _component(
        kinds.HEALTH_CHECKS,
        "health checks of this node, before it joins and again after each failure: disk, memory, "
        "gpu, network, command:PROGRAM, or a plugin's name (default: none)",
        default=(),
        metavar="NAME[:ARGUMENT],...",
        read=words,
    ),
    Option(
        ("--monitor-interval",),
        "interval at which the launcher polls for changes that do not wake it (default: 0.1)",
        default=0.1,
        metavar="SECONDS",
        read=seconds(PERIOD),
    ),
    Option(
        ("--shutdown-timeout",),
        "time for workers to stop before they are killed, whatever the reason (inf: never kill "
        "them; default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)",
        metavar="SECONDS",
        read=seconds(PATIENCE),
        variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    ),
    Option(
        ("--exit-barrier-timeout",),
        "time to wait for the other nodes after all workers of this node have succeeded (default: "
        "300)",
        default=EXIT_BARRIER_TIMEOUT,
        metavar="SECONDS",
        read=seconds(PATIENCE),
    ),
    Option(
        ("--keep-daemons",),
        "do not kill processes that workers leave behind if all workers succeed; failure reports "
        "then lack the last lines of stderr",
        read=None,
    ),
    Option(
        ("--signals-to-handle",),
        f"signals that stop the job (default: {DEFAULT_SIGNALS})",
        default=DEFAULT_SIGNALS,
        metavar="SIG,...",
    ),
    _component(
        kinds.SIGNAL_POLICIES,
        "how signals are handled: torchrun (the listed signals stop the job), notify (some are "
        "passed on to the workers instead), or a plugin's name (default: torchrun)",
    ),
)
LOGS = (
    Option(
        ("--log-dir",), "base folder of log files", metavar="DIR", path="directory", is_shared=True
    ),
    Option(
        ("-r", "--redirects"),
        "streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or "
        "by local rank as in 0:3,1-7:1",
        default="0",
        metavar="STREAMS",
        is_shared=True,
    ),
    Option(
        ("-t", "--tee"),
        "streams that go to both files and the console; same format",
        default="0",
        metavar="STREAMS",
        is_shared=True,
    ),
    Option(
        ("--local-ranks-filter",),
        "show only these local ranks on the console, as in 0,8-15",
        default="",
        metavar="RANKS",
    ),
    Option(
        ("--log-line-prefix-template",),
        "prefix of teed lines; ${role_name} ${local_rank} ${rank} ${hostname} ${attempt} ${time} "
        "are replaced (default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else "
        "[${role_name}${local_rank}]:)",
        metavar="TEXT",
    ),
    *(
        Option(
            (f"--duplicate-{stream}-filters",),
            f"also write teed {stream} lines that contain one of these words to a separate file; "
            "write a comma twice to mean one",
            default=(),
            metavar="WORD,...",
            read=words,
        )
        for stream in ("stdout", "stderr")
    ),
    _component(kinds.LOGS_SPECS, "plugin that decides where logs go (default: default)"),
    _component(
        kinds.EVENT_HANDLERS,
        "event handlers: null, console, jsonl, otel, or a plugin's name, separated by commas "
        "(default: null)",
        metavar="NAME,...",
    ),
    Option(
        ("--color",),
        "when to colour the launcher's messages: auto (on a terminal, unless NO_COLOR is set; with "
        "FORCE_COLOR anywhere), always or never (default: auto)",
        default="auto",
        metavar="WHEN",
        choices=COLORS,
        is_shared=True,
    ),
    Option(
        ("--log-format",),
        "format of the launcher's messages: text, or json with one object per line (default: text)",
        default="text",
        metavar="FORM",
        choices=FORMATS,
        is_shared=True,
    ),
)
HELP = (
    Option(
        ("-p", "--plugins"),
        "load plugin NAME; no:NAME blocks it (also in PLAUNCH_PLUGINS)",
        metavar="NAME",
        has_variable=False,
        is_repeated=True,
        is_shared=True,
    ),
    Option(
        ("-h", "--help"),
        "show this help message and exit",
        read=None,
        is_shared=True,
        command="plaunch.cli.help:show_help",
    ),
    Option(
        ("--version",),
        "show the version and exit",
        read=None,
        is_shared=True,
        command="plaunch.cli.help:show_version",
    ),
)
GROUPS = (
    ("nodes and workers", NODES),
    ("rendezvous", RENDEZVOUS),
    ("the script", SCRIPT),
    ("supervision", SUPERVISION),
    ("logs and events", LOGS),
    ("plugins and help", HELP),
)
OPTIONS = tuple(option for _, group in GROUPS for option in group)
