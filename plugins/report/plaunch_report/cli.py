"""The command line of `plaunch-report`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError, UsageError

from plaunch_report.launches import choose_launch, choose_run
from plaunch_report.reading import read_folder
from plaunch_report.story import Storyteller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_report.facts import Story

_NEEDED = ("bokeh", "jinja2")


def entry_point() -> None:
    """Run `main` as the program `plaunch-report`."""
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


def main(argv: Sequence[str]) -> int:
    """Make a report; return the exit code."""
    options = _create_parser().parse_args(argv)
    try:
        _make(options)
    except PlaunchError as error:
        print(f"plaunch-report: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plaunch-report",
        description="Make one HTML page about a run from the events that its launchers wrote "
        "(--event-log-handler=jsonl --log-dir=DIR).",
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        help="a log directory, or the folder of one run; all *.jsonl files below it are read",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where the report goes; - is the standard output (default: report.html here, and "
        "with --json the standard output)",
    )
    parser.add_argument("--run-id", help="which run, if there are several below the folder")
    parser.add_argument(
        "--launch",
        type=int,
        metavar="N",
        help="which launch of the run, 1 being the first, if its id was used several times "
        "(default: the last)",
    )
    parser.add_argument(
        "--json", action="store_true", help="write the facts as JSON instead of a page"
    )
    return parser


def _make(options: argparse.Namespace) -> None:
    reading = read_folder(options.run_dir)
    run = choose_run(reading.agents, options.run_id)
    agents, launch, launches = choose_launch(run, options.launch)
    teller = Storyteller(agents, reading, launch, launches)
    story = teller.tell()
    if options.json:
        _write(options.output or "-", json.dumps(as_json(story), indent=1) + "\n")
        return
    _check_libraries()
    from plaunch_report.page import create_page  # noqa: PLC0415 - loads the libraries

    output = options.output or "report.html"
    _write(output, create_page(story, teller.events))
    if output != "-":
        nodes = "1 node" if len(story.nodes) == 1 else f"{len(story.nodes)} nodes"
        print(f"{output}: run {story.run_id!r} on {nodes}, outcome {story.outcome!r}")


def as_json(story: Story) -> dict[str, object]:
    """The facts as plain values, with a version that grows when a key changes its meaning."""
    return {"version": 1, **asdict(story)}


def _check_libraries() -> None:
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(
                f"the page needs the library {name!r}, which cannot be imported ({error}); run "
                "pip install 'plaunch[report]', or use --json"
            ) from error


def _write(path: str, text: str) -> None:
    """Write all or nothing."""
    data = text.encode(errors="replace")
    if path == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    partial = f"{path}.{os.getpid()}.partial"
    if os.path.exists(path) and not os.path.isfile(path):
        partial = path  # a device or a pipe, which must stay what it is
    try:
        with open(partial, "wb") as file:
            file.write(data)
        if partial != path:
            os.replace(partial, path)
    except OSError as error:
        if partial != path and os.path.exists(partial):
            os.unlink(partial)
        raise UsageError(
            f"cannot write the report to {path!r}: {error.strerror}; give another file with -o"
        ) from error
