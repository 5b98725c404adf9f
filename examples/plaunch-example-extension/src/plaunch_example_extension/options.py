"""The option. Every command line imports this module, so it imports nothing else."""

from plaunch.options import Option

PLUGIN = "plaunch_example_extension.reload"
OPTIONS = (
    Option(
        ("--reload-file",),
        "restart all workers when this file appears, and remove it (default: never)",
        metavar="FILE",
        path="file",
    ),
)
