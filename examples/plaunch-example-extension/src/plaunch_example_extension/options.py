"""The option; this module is imported for every command line, so it imports nothing else."""

from plaunch.options import Option

PLUGIN = "plaunch_example_extension.reload"
OPTIONS = (
    Option(
        ("--reload-file",),
        "start all workers again when this file appears; it is removed then (default: never)",
        metavar="FILE",
        path="file",
    ),
)
