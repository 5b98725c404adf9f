"""The options of failure bundles."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_report.plugin"

OPTIONS = (
    Option(
        ("--failure-bundle",),
        "when the job fails, put what is known of it into a file failure-<attempt>.zip in this "
        "folder (default: the folder of the run below --log-dir)",
        metavar="DIR",
        path="directory",
    ),
    Option(
        ("--failure-bundles",),
        "for which failures: the one that ends the job, also those that are followed by a restart, "
        "or none (default: last, if there is a folder for it)",
        default="last",
        metavar="WHICH",
        choices=("last", "all", "none"),
    ),
)
