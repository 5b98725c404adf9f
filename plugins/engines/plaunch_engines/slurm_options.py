"""The options of the engine `slurm`."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--slurm-options",),
        "with --on=slurm outside of an allocation, and with --on=slurm:batch: options of salloc or "
        'sbatch, such as "--partition=gpu --time=8:00:00 --gpus-per-node=8"; may be repeated',
        metavar="OPTIONS",
        is_repeated=True,
        has_variable=False,
    ),
)
