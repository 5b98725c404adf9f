"""The option `--check-plugin`."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--check-plugin",),
        "run the conformance suites for this plugin; for a rendezvous backend, add "
        "--rdzv-endpoint and --rdzv-conf",
        metavar="NAME",
        command="plaunch_testing.check:run_check",
    ),
)
