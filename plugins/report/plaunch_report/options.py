"""The options of failure bundles."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_report.plugin"
KNOWN_AS = "the failure bundle"
AFTER_FAILURE = "plaunch_report.plugin:AfterFailure"

OPTIONS = (
    Option(
        ("--failure-bundle",),
        "when the job fails, write a failure bundle, failure-<attempt>.zip, to this folder "
        "(default: the folder of the run below --log-dir)",
        metavar="DIR",
        path="directory",
    ),
    Option(
        ("--failure-bundles",),
        "which failures get a bundle: last (the one that ends the job), all (also those followed by"
        " a restart) or none (default: last, if there is a folder for it)",
        default="last",
        metavar="WHICH",
        choices=("last", "all", "none"),
    ),
)
