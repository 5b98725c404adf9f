"""The engines `slurm` and `slurm:batch`, by what follows `--on=slurm`."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

from plaunch_engines.slurm_batch import SlurmBatchEngine
from plaunch_engines.slurm_steps import SlurmEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.engines import BatchEngine, Engine, EngineRequest

_OF_ENGINE = re.compile(r"(--nodes|--ntasks|--ntasks-per-node|--no-shell|--parsable)(=.*)?|-[Nn].*")


def create_slurm_engine(request: EngineRequest) -> Engine | BatchEngine:
    """Return the engine for `--on=slurm` or `--on=slurm:batch`.

    Raises:
        UsageError: it is neither, Slurm is not installed, or the options of Slurm are invalid.
    """
    if request.where not in ("", "batch"):
        raise UsageError(f"--on=slurm:{request.where} is unknown; write slurm or slurm:batch")
    options = slurm_options(request.options["slurm_options"] or ())
    return (SlurmBatchEngine if request.where else SlurmEngine)(request, options)


def slurm_options(texts: Sequence[str]) -> list[str]:
    """Return the words of `--slurm-options`.

    Raises:
        UsageError: they cannot be split, or have an option that the engine sets.
    """
    try:
        words = [word for text in texts for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(f"--slurm-options: {error} in {' '.join(texts)!r}") from None
    for word in words:
        if _OF_ENGINE.fullmatch(word):
            raise UsageError(
                f"--slurm-options: {word!r} is set by --on=slurm; leave it out, and give the "
                "number of nodes with --nnodes"
            )
    return words
