"""What each worker runs: the interpreter and the script, a module, a program, or runpy."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.cli.table import Arguments


def worker_command(args: Arguments) -> tuple[Callable[..., Any] | str, list[str]]:
    """The entrypoint and its arguments.

    Scripts and modules run under `PYTHON_EXEC`, or this interpreter, with `-u`, as in torchrun.

    Raises:
        UsageError: there is no script, it does not exist, or options contradict each other.
    """
    script: str | None = args.training_script
    rest: list[str] = args.training_script_args
    if script is None:
        raise UsageError(
            f"there is no script to run{_taken_for_a_value(args)}; write plaunch [options] script "
            "[arguments]"
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
        _check_file(script)
        return run_script_path, [script, *rest]
    if args.no_python:
        _check_program(script)
        return script, rest
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    if "PYTHON_EXEC" in os.environ:
        _check_program(python, "variable PYTHON_EXEC names")
    if args.module:
        return python, ["-u", "-m", script, *rest]
    _check_file(script)
    return python, ["-u", script, *rest]


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this process as `python script` would; the name is torchrun's."""
    import runpy  # noqa: PLC0415 - workers only

    sys.argv = [training_script, *training_script_args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(training_script)))
    runpy.run_path(training_script, run_name="__main__")


def _check_file(script: str) -> None:
    if not os.path.exists(script):
        raise UsageError(f"the script {script!r} does not exist{_what_was_meant(script)}")
    # A folder or a zip file with a __main__.py is a script to python, too.
    if os.path.isdir(script) and not os.path.isfile(os.path.join(script, "__main__.py")):
        raise UsageError(
            f"the script {script!r} is a folder without a __main__.py; give the path of a file in "
            "it, or -m for a package"
        )


def _check_program(program: str, who: str = "--no-python runs") -> None:
    import shutil  # noqa: PLC0415 - programs only

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


def _what_was_meant(script: str) -> str:
    """The end of the message about a script that does not exist."""
    from plaunch._names import did_you_mean, is_python  # noqa: PLC0415 - errors only

    try:
        here = os.getcwd()
    except OSError:
        return ", and the current folder does not exist any more; change to another folder"
    if is_python(script):
        return "; plaunch starts python itself: leave out this word"
    first, *rest = script.split()
    if rest and os.path.exists(first):
        return f"; plaunch reads it as one name: leave out the quotes around {script!r}"
    folder = os.path.dirname(script)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        names = []
    # Only a slip of letters: a module or a program has another option.
    hint = did_you_mean(script, [os.path.join(folder, n) for n in names if n.endswith(".py")])
    return hint or (
        f" (current folder: {here}); give its path, or -m for a module, or --no-python for a "
        "program"
    )


def _taken_for_a_value(args: Arguments) -> str:
    """Which option has taken the script for its value, if one has."""
    from plaunch.cli.table import COMMAND_LINE  # noqa: PLC0415 - errors only

    for option in args.table:
        value = getattr(args, option.dest)
        if args.sources[option.dest] == COMMAND_LINE and str(value).endswith(".py"):
            return f", as {value!r} is the value of {option.names[-1]}"
    return ""
