"""The options that start a job on several nodes."""

from __future__ import annotations

from plaunch.options import LIMIT, Option, integer, seconds

OPTIONS = (
    Option(
        ("--on",),
        "start one agent on each node, through an engine: local:N, ssh:HOST,HOST, ssh:@FILE, "
        "kubernetes, kubernetes:print, or a plugin's; all other options are those of each agent",
        metavar="ENGINE[:WHERE]",
        plugins="engines",
        command="plaunch_engines.command:run_on_nodes",
    ),
    Option(
        ("--spares",),
        "with --on: the number of further nodes, which wait to replace lost ones (default: 0)",
        default=0,
        metavar="N",
        read=integer,
        has_variable=False,
    ),
    Option(
        ("--pass-env",),
        "with --on: environment variables that agents get from here, beside those of plaunch and "
        "the usual libraries; a final * stands for any characters; may be repeated",
        metavar="NAME,...",
        is_repeated=True,
        has_variable=False,
    ),
    Option(
        ("--node-python",),
        "with --on: the Python of the agents on their nodes (default: this one)",
        metavar="PATH",
        has_variable=False,
    ),
    Option(
        ("--start-limit",),
        "with --on: time for all agents to report that they are ready (default: 60)",
        default=60.0,
        metavar="SECONDS",
        read=seconds(LIMIT),
        has_variable=False,
    ),
)
