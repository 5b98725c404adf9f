"""The engine `slurm:batch`: submits a batch script with one launcher on each node."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.texts import printable

from plaunch_engines.node_command import check_setup
from plaunch_engines.options import ENGINE_VARIABLE
from plaunch_engines.slurm_programs import ask_slurm, excluding, require
from plaunch_engines.variables import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.engines import EngineRequest

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
{directives}
{path}
srun --ntasks="$SLURM_JOB_NUM_NODES" --cpu-bind=none {srun} \\
    {setup}{python} -m plaunch --scheduler=slurm \\
    {arguments}
"""
_PATH = f'export PATH={shlex.quote(os.path.dirname(sys.executable))}:"$PATH"'
_SUBMIT_TIMEOUT = 60.0  # seconds


class SlurmBatchEngine:
    """Submits a job that continues without this command.

    Args:
        request: what the user requests.
        options: options of sbatch.

    Raises:
        UsageError: Slurm is not installed, or the number of nodes is missing.
    """

    used_options = ("exclude", "node_setup")

    def __init__(self, request: EngineRequest, options: Sequence[str]) -> None:
        require("sbatch")
        if request.max_nodes is None or request.min_nodes is None:
            raise UsageError("--on=slurm:batch needs a number of nodes (--nnodes)")
        self._min_nodes = request.min_nodes
        self._nodes = request.max_nodes + request.spares
        self._folder = request.folder
        self._name = request.job
        self._options = [*excluding(request), *options]
        self._setup = check_setup(request.options.get("node_setup") or "")

    def launch(self, arguments: Sequence[str], show: Callable[[str], None]) -> int:
        """Write the script to the working folder, submit it, and print how to follow it.

        Raises:
            UsageError: the script cannot be written, or Slurm rejects it.
        """
        path = Path(self._folder, f"{self._name}.sbatch")
        try:
            path.write_text(self.script(arguments))
        except OSError as error:
            raise UsageError(
                f"--on=slurm:batch: the script {path} cannot be written: {error.strerror}; run the "
                "command in another folder"
            ) from None
        try:
            submitted = subprocess.run(
                ["sbatch", "--parsable", str(path)],
                env=_environment(),
                capture_output=True,
                timeout=_SUBMIT_TIMEOUT,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"sbatch has not answered within {_SUBMIT_TIMEOUT:g} s; Slurm may still run "
                f"{path}: see squeue --name={self._name}"
            ) from None
        if submitted.returncode != 0:
            path.unlink()
            why = printable("; ".join(submitted.stderr.strip().splitlines()))
            raise UsageError(f"the job was not submitted: {why}")
        job = printable(submitted.stdout.strip().partition(";")[0])
        output = re.search(r"StdOut=(.+)", ask_slurm("scontrol", "show", "job", job))
        show(f"submitted job {job} ({path})")
        file = printable(output[1]) if output else f"slurm-{job}.out"
        show(f"output: tail -F {shlex.quote(file)}")
        show(f"state: squeue --jobs={job}    end: scancel {job}")
        return 0

    def script(self, arguments: Sequence[str]) -> str:
        """Return the batch script.

        Args:
            arguments: as for `launch`.
        """
        # With nodes to spare, the job survives a launcher or a node that is lost.
        is_elastic = self._min_nodes < self._nodes
        options = ["--no-kill", *self._options] if is_elastic else self._options
        return _SCRIPT.format(
            job=self._name,
            nodes=self._nodes,
            directives="".join(f"#SBATCH {option}\n" for option in _lines(options)),
            srun="--no-kill" if is_elastic else "--kill-on-bad-exit",
            path=_PATH,
            setup=self._setup and f"bash -l -c {shlex.quote(self._set_up())} --node-setup \\\n    ",
            python=shlex.quote(sys.executable),
            arguments=shlex.join(arguments),
        )

    def _set_up(self) -> str:
        """Return what a shell on each node runs, with the launcher as its arguments."""
        return f'{{ {self._setup}\n}} </dev/null && {_PATH} && exec "$@"'

    def close(self) -> None:
        """Do nothing: the job belongs to Slurm."""


def _environment() -> dict[str, str]:
    """Return what Slurm passes to the agents: all variables, and a token."""
    env = {TOKEN_VARIABLE: secrets.token_hex(32), **os.environ}
    env.pop(ENGINE_VARIABLE, None)
    return env


def _lines(words: Sequence[str]) -> list[str]:
    """Return each option with its value, which may be the next word, for one line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return lines
