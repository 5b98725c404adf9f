"""Runs accelerate, torchx, DeepSpeed and others with plaunch in the place of torchrun.

    python tools/callers                          all libraries
    python tools/callers accelerate deepspeed     some of them
    python tools/callers --write                  writes the table in docs/callers.md

Each library has an environment of its own, in which pip installs it with the torch of
constraints.txt, and plaunch as it is in this repository. If something is not as expected, the same
is run with torchrun:

- works: all is as expected.
- differs: it is, with torchrun only.
- fails: it is not with torchrun either, or torchrun has nothing like it.

The exit code is 1 if a verdict is not that of the table in docs/callers.md.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import callers_page as page
from environments import LibraryEnvironmentError, prepare_environment
from libraries import LIBRARIES, Library
from scenarios import FAILS, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_LIMIT = 300.0  # seconds; on a busy machine, imports alone take minutes


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit code."""
    names = [library.name for library in LIBRARIES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python tools/callers",
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="LIBRARY", help=f"{', '.join(names)}")
    parser.add_argument("--write", action="store_true", help="write the table in docs/callers.md")
    parser.add_argument(
        "--folder", type=Path, help="keep the environments here (default: temporary ones)"
    )
    parser.add_argument(
        "--limit", type=float, default=DEFAULT_LIMIT, metavar="SECONDS",
        help="for each row of the table (default: %(default)g)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    if unknown := sorted({*args.names} - {*names}):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(sorted(names))}")
    wanted = [one for one in LIBRARIES if one.name in (args.names or names)]
    with tempfile.TemporaryDirectory(prefix="plaunch-callers-") as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        rows: dict[str, str] = {}
        sys.stdout.write(page.HEAD)
        for library in wanted:
            rows.update(run_library(library, folder, args.limit))
            if args.folder is None:
                shutil.rmtree(folder / library.name, ignore_errors=True)
    text = page.PAGE.read_text()
    known = page.read_rows(text)
    if args.write:
        order = [page.key_of(one, scenario) for one in LIBRARIES for scenario in one.scenarios]
        page.PAGE.write_text(page.merge_rows(text, rows, order))
    is_as_before = True
    for key, row in rows.items():
        before = page.word_of(known.get(key, "")) or "not there"
        if page.word_of(row) != before:
            is_as_before = False
            sys.stderr.write(f"{key.strip('| ')}: {page.word_of(row)}; in the table: {before}\n")
    return 0 if is_as_before else 1


def run_library(library: Library, folder: Path, limit: float) -> dict[str, str]:
    """Run all of a library's scenarios; return their rows, by their first columns."""
    rows = {}
    place = folder / library.name
    runs = next(
        path
        for number in itertools.count(1)
        if not (path := folder / f"{library.name}-runs-{number}").exists()
    )
    failure = ""
    try:
        python = prepare_environment(library, place)
    except LibraryEnvironmentError as error:
        failure = f"the environment cannot be made: {error}"
    for number, scenario in enumerate(library.scenarios):
        if failure:
            verdict = Verdict(FAILS, failure)
        else:
            verdict = judge(scenario, python, runs / str(number), limit)
        row = rows[page.key_of(library, scenario)] = page.row_of(library, scenario, verdict)
        sys.stdout.write(row)
        sys.stdout.flush()
    return rows
