"""`python -m plaunch_torchrun.launch`: the counterpart of `python -m torch.distributed.launch`.

It is plaunch, except that each worker gets the argument `--local-rank=N`, unless `--use-env` is
given.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from plaunch.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["launch", "main", "parse_args"]

_USE_ENV = ("--use-env", "--use_env")


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line without the program's name, with `--use-env`."""
    from plaunch_torchrun.parser import get_args_parser  # for programs only

    parser = get_args_parser()
    parser.add_argument(
        *_USE_ENV,
        action="store_true",
        help="do not give workers --local-rank; they take LOCAL_RANK from their environment",
    )
    return parser.parse_args(args)


def launch(args: argparse.Namespace) -> None:
    """Launch what `args` describe, and wait for the end; raises what `run.run` does.

    Raises:
        UsageError: `--no-python` is given without `--use-env`.
    """
    from plaunch_torchrun.run import run  # for programs only

    _check(args.no_python, args.use_env)
    run(args)


def main(args: Sequence[str] | None = None) -> None:
    """Launch what a command line describes, by default this process's."""
    launch(parse_args(sys.argv[1:] if args is None else args))


def command_line(argv: Sequence[str]) -> list[str]:
    """Return the command line of plaunch that does the same as `argv` here.

    Raises:
        UsageError: an option is unknown or malformed, or `--no-python` is without `--use-env`.
    """
    from plaunch.cli import parse  # inside entry_point's try

    from plaunch_torchrun.parser import LOCAL_RANK_ARGUMENT

    plain = [(at, word) for at, word in enumerate(argv) if word not in _USE_ENV]
    words = [word for _, word in plain]
    args = parse(words)
    if args.training_script is None:
        return words
    script = plain[-len(args.training_script_args) - 1][0]
    options = [word for word in argv[:script] if word not in _USE_ENV]
    use_env = len(options) < script  # after the script, it is an argument of the script
    _check(args.no_python, use_env)
    local_rank = [] if use_env else [LOCAL_RANK_ARGUMENT]
    return [*options, argv[script], *local_rank, *argv[script + 1 :]]


def entry_point() -> NoReturn:
    """Run the command line of this process and end it."""
    from plaunch.cli import entry_point as plaunch_entry_point

    try:
        sys.argv[1:] = command_line(sys.argv[1:])
    except UsageError as error:
        sys.stderr.write(f"plaunch: error: {error}\n")
        sys.exit(ExitCode.USAGE)
    plaunch_entry_point()


def _check(no_python: bool, use_env: bool) -> None:
    if no_python and not use_env:
        raise UsageError("--no-python needs --use-env here: a program accepts no --local-rank")


if __name__ == "__main__":
    entry_point()
