"""The command line of `plaunch-report`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import secrets
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError, UsageError
from plaunch.texts import printable

from plaunch_report import bundles
from plaunch_report.event_files import read_folders
from plaunch_report.launches import choose_launch, choose_run
from plaunch_report.page import create_table
from plaunch_report.summary import SummaryBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from plaunch_report.facts import LaunchSummary

_NEEDED = ("bokeh", "jinja2")


def entry_point() -> None:
    """Run `main` as the program `plaunch-report`."""
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


def main(argv: Sequence[str]) -> int:
    """Write a report; return the exit code."""
    options = _create_parser().parse_args(argv)
    try:
        _write_report(options)
    except PlaunchError as error:
        print(f"plaunch-report: error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    return 0


def _create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plaunch-report",
        description="Make one HTML page about a run from the events that its launchers wrote "
        "(--event-log-handler=jsonl --log-dir=DIR), or from a failure bundle.",
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a log directory, or the folder of one run; all *.jsonl files below it are read; or a "
        "failure bundle (*.zip). Several, such as those of all hosts of a job, make one report",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file to write; - is the standard output (default: report.html, and with --json "
        "the standard output)",
    )
    parser.add_argument("--run-id", help="the run, if there are several below the folder")
    parser.add_argument(
        "--launch",
        type=int,
        metavar="N",
        help="the launch of the run, from 1, if its id was used several times (default: the last)",
    )
    parser.add_argument(
        "--json", action="store_true", help="write the facts as JSON instead of a page"
    )
    return parser


def _write_report(options: argparse.Namespace) -> None:
    folders: dict[str, str] = {}  # the folders to read, and the paths that they are from
    reports = []  # the reports of bundles without events
    with contextlib.ExitStack() as stack:
        for path in options.paths:
            if not (path.endswith(bundles.SUFFIX) and os.path.isfile(path)):
                folders[path] = path
                continue
            bundle = stack.enter_context(bundles.open_bundle(path))
            if bundle.folder:
                folders[bundle.folder] = path
            elif options.json or len(options.paths) > 1:
                raise UsageError(f"{path!r} has no events, from which the report is made")
            else:
                reports.append(bundle.report)
        if reports:
            _write(options.output or "-", reports)
            return
        _report_on_folders(folders, options)


def _report_on_folders(folders: Mapping[str, str], options: argparse.Namespace) -> None:
    event_files = read_folders([*folders], folders)
    run = choose_run(event_files.agents, options.run_id)
    agents, launch, launches = choose_launch(run, options.launch)
    builder = SummaryBuilder(agents, event_files, launch, launches)
    summary = builder.create_summary()
    if options.json:
        _write(options.output or "-", _as_json(summary))
        return
    _check_libraries()
    from plaunch_report.page import create_page  # loads the libraries

    output = options.output or "report.html"
    _write(output, create_page(summary, create_table(event_files, builder)))
    if output != "-":
        nodes = "1 node" if len(summary.nodes) == 1 else f"{len(summary.nodes)} nodes"
        _write("-", [f"{output}: run {summary.run_id!r} on {nodes}, outcome {summary.outcome!r}\n"])


def _as_json(summary: LaunchSummary) -> Iterator[str]:
    """The facts as JSON, in pieces; the version increases when a key changes its meaning."""
    facts = {"version": 2, **_fields_of(summary)}
    yield from json.JSONEncoder(indent=1, default=_fields_of).iterencode(facts)
    yield "\n"


def _fields_of(fact: Any) -> dict[str, object]:
    return {field.name: getattr(fact, field.name) for field in fields(fact)}


def _check_libraries() -> None:
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(
                f"the page needs the library {name!r}, which cannot be imported ({error}); run "
                "pip install 'plaunch[report]', or use --json"
            ) from error


def _write(path: str, pieces: Iterable[str]) -> None:
    """Write the pieces atomically: an existing file is replaced once all are written."""
    if path == "-":
        _write_to_stdout(pieces)
        return
    target = os.path.realpath(path)  # keep a link, and replace its target
    try:
        if os.path.exists(target) and not os.path.isfile(target):
            # A device or a pipe must not be replaced.
            with open(target, "w", encoding="utf-8", errors="replace") as file:
                file.writelines(pieces)
        else:
            _replace(target, pieces)
    except OSError as error:
        raise UsageError(
            f"cannot write the report to {path!r}: {error.strerror}; give another file with -o"
        ) from error


def _replace(target: str, pieces: Iterable[str]) -> None:
    # Other users of the folder cannot guess the name, so they cannot place a link there.
    partial = f"{target}.{secrets.token_hex(8)}.partial"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(partial, flags, 0o666)
    try:
        with open(fd, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(fd)  # some file systems report only now that they are full
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _write_to_stdout(pieces: Iterable[str]) -> None:
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece.encode(errors="replace"))
        sys.stdout.flush()
    except OSError as error:
        # Otherwise the interpreter would write the rest of the buffer at exit, and fail again.
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        raise UsageError(f"cannot write to the standard output: {error.strerror}") from error
