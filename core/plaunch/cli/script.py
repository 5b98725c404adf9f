"""Runs a script in a worker of `--run-path`, which imports nothing else of the command line."""

from __future__ import annotations

import os
import sys


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this worker as `python script` would; the name is torchrun's."""
    import runpy  # workers only

    sys.argv = [training_script, *training_script_args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(training_script)))
    runpy.run_path(training_script, run_name="__main__")
