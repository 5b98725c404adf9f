"""The option that checks a plugin."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--check-plugin",),
        "run the conformance suites of its kinds over a plugin; a rendezvous backend is given "
        "--rdzv-endpoint and --rdzv-conf",
        metavar="NAME",
        command="plaunch_testing.check:run_check",
    ),
)
