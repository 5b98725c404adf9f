"""The command of each worker: Python with a script or module, a program, or runpy."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError
from plaunch.parts import ADVICE_ON_SCRIPT, advise

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.cli.parser import Arguments


def worker_command(args: Arguments) -> tuple[Callable[..., Any] | str, list[str]]:
    """Return the entrypoint and its arguments.

    Scripts and modules run under `PYTHON_EXEC`, or this interpreter, with `-u`, as in torchrun.

    Raises:
        UsageError: there is no script, it does not exist, or options contradict each other.
    """
    script: str | None = args.training_script
    rest: list[str] = args.training_script_args
    if script is None:
        advice = advise(ADVICE_ON_SCRIPT, args)
        raise UsageError(
            f"there is no script to run{advice}; write plaunch [options] script [arguments]"
        )
    if not script.strip():
        raise UsageError(
            f"the name of the script is empty ({script!r}); perhaps a variable is not set"
        )
    if args.no_python and args.module:
        raise UsageError(
            f"--no-python and --module contradict each other for {script!r}: a module needs "
            "python; leave one out"
        )
    if args.run_path and args.module:
        raise UsageError(
            f"--run-path and --module contradict each other for {script!r}: leave one out"
        )
    if args.run_path:
        _check_file(script, args)
        return run_script_path, [script, *rest]
    if args.no_python:
        _check_program(script)
        return script, rest
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    if "PYTHON_EXEC" in os.environ:
        _check_program(python, "variable PYTHON_EXEC names")
    if args.module:
        return python, ["-u", "-m", script, *rest]
    _check_file(script, args)
    return python, ["-u", script, *rest]


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this process as `python script` would; the name is torchrun's."""
    import runpy  # workers only

    sys.argv = [training_script, *training_script_args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(training_script)))
    runpy.run_path(training_script, run_name="__main__")


def _check_file(script: str, args: Arguments) -> None:
    try:
        os.stat(script)
    except (FileNotFoundError, NotADirectoryError):
        advice = advise(ADVICE_ON_SCRIPT, args)
        raise UsageError(f"the script {script!r} does not exist{advice}") from None
    except OSError as error:
        advice = "; check the permissions of its folders" if error.errno == errno.EACCES else ""
        raise UsageError(
            f"the script {script!r} cannot be read: {error.strerror}{advice}"
        ) from error
    # A folder or a zip file with a __main__.py is a script to python, too.
    if os.path.isdir(script) and not os.path.isfile(os.path.join(script, "__main__.py")):
        raise UsageError(
            f"the script {script!r} is a folder without a __main__.py; give the path of a file in "
            "it, or -m for a package"
        )


def _check_program(program: str, who: str = "--no-python runs") -> None:
    import shutil  # programs only

    if shutil.which(program) is not None:
        return
    why = "which is not an executable file and is not found on PATH"
    if os.path.isfile(program):
        why = f"a file that may not be executed; chmod +x {program}"
        if os.access(program, os.X_OK):
            why = (
                f"which is not found on PATH; for the file in the current folder write ./{program}"
            )
    raise UsageError(f"{who} {program!r}, {why}")
