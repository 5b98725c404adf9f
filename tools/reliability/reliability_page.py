"""Writes docs/reliability.md from docs/results/*.json and the table of promises.

python tools/reliability/reliability_page.py
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from promises import PROMISES
from result_file import ROOT, read_results

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from promises import Promise
    from result_file import Result

COMMAND = "python tools/reliability/reliability_page.py"
TARGET = ROOT / "docs" / "reliability.md"

# What each tool runs.
TOOLS = {
    "simulate": (
        "Whole jobs in virtual time, each from a seed: real agents, membership and restart "
        "policies, with simulated hosts, workers and stores, and faults. "
        "[How it works](testing-plugins.md#whole-jobs-in-virtual-time)."
    ),
    "soak": (
        "Real jobs, one after the other, with real faults: killed and suspended launchers, "
        "workers and stores. The checks are those of the simulator."
    ),
    "fuzz": (
        "Coverage-guided fuzzing of everything that reads what others wrote: frames, records, "
        "options, event files, requests, lines of agents."
    ),
    "mutate": (
        "Changes single lines of the core, and runs the tests that execute them. A change that no "
        "test finds is a survivor."
    ),
}

HEAD = f"""\
# Reliability

<!-- search: guarantees, promises, proof, soak, fuzzing, mutation -->

What was run to find faults in plaunch, what it found, what plaunch promises, and what shows each
promise. `{COMMAND}` writes this page from result files and
a table; nothing in it is edited by hand ([how](contributing.md#result-files)).
"""

PROMISED = """
## What is promised

The tests are in the folder `tests`, and run before each merge. Each row links to the pages that
make the promise, which have the details and the limits.
"""

NOT_SHOWN = """\
## What is not shown

- **GPUs and NCCL**: [Checks on a GPU](gpu.md) says what was checked on one.
- **A real cluster of Kubernetes.** Tests use a server that answers as its API does, and the
  published schemas.
- **A real network.** All nodes of tests and runs are on one machine: on its loopback interface, or
  in network namespaces whose links are cut. Real switches lose and delay packets in other ways.
- **Many machines.** Measurements with many nodes run them on one machine, or simulate them.
- **Other versions and systems.** Runs have the Python and torch of their tables.
  [Other versions](contributing.md#other-versions-of-python-and-torch) says where the tests have
  run. arm64 was not tested.
"""

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def make_page(results: Sequence[Result], promises: Mapping[str, Sequence[Promise]]) -> str:
    """Return the whole page."""
    parts = [HEAD, "\n## What ran\n"]
    for tool, about in TOOLS.items():
        parts += _section(tool, about, [result for result in results if result.tool == tool])
    parts.append(PROMISED)
    missing = TOOLS.keys() - {result.tool for result in results}
    for heading, rows in promises.items():
        parts += _promises(heading, rows, missing)
    parts += ["\n", NOT_SHOWN]
    return "".join(parts)


def _section(tool: str, about: str, results: Sequence[Result]) -> Iterator[str]:
    yield f"\n### `tools/{tool}`\n\n{about}\n"
    if not results:
        yield "\n**This has not run.**\n"
    for result in results:
        yield f"\n    {result.command}\n\n"
        yield _table(["", ""], _circumstances(result))
        yield from _figures(result.figures)
    findings = [finding for result in results for finding in result.findings]
    if findings:
        yield "\n" + _table(["found", "fixed"], _findings(findings))
    elif results:
        yield "\nNothing was found.\n"


def _circumstances(result: Result) -> Iterator[list[str]]:
    yield ["date, commit", f"{result.date}, `{result.commit}`"]
    yield ["machine", result.machine]
    yield ["versions", f"Python {result.python}, torch {result.torch}"]
    yield ["duration", ", ".join(f"{_number(n)} {name}" for name, n in result.durations.items())]
    for name, value in result.figures.items():
        if not isinstance(value, dict):
            yield [name, _number(value)]
        elif not _shares_columns(name, result.figures):
            yield [name, ", ".join(f"{key} {_number(number)}" for key, number in value.items())]


def _figures(figures: Mapping[str, Any]) -> Iterator[str]:
    """Return the table of those that have columns in common."""
    rows = {name: row for name, row in figures.items() if _shares_columns(name, figures)}
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    if rows:
        cells = ([name, *(_number(row.get(c, "")) for c in columns)] for name, row in rows.items())
        yield "\n" + _table(["", *columns], cells)


def _shares_columns(name: str, figures: Mapping[str, Any]) -> bool:
    """Whether a figure is a row that has a column in common with another one."""
    rows = {other: row for other, row in figures.items() if isinstance(row, dict)}
    return name in rows and any(
        other != name and not rows[name].keys().isdisjoint(row) for other, row in rows.items()
    )


def _findings(findings: Iterable[Mapping[str, str]]) -> Iterator[list[str]]:
    for finding in findings:
        yield [finding["what"], finding["fix"] or "**not yet**"]


def _promises(heading: str, promises: Sequence[Promise], missing: Collection[str]) -> Iterator[str]:
    yield f"\n### {heading}\n\n"
    rows = (
        [
            promise.text,
            ", ".join(dict.fromkeys(link_to(page, words) for page, words in promise.stated)),
            ", ".join([*(_run(run, missing) for run in promise.runs), *map(_test, promise.tests)]),
        ]
        for promise in promises
    )
    yield _table(["promise", "stated in", "shown by"], rows)


def _run(tool: str, missing: Collection[str]) -> str:
    return f"`tools/{tool}` (has not run)" if tool in missing else f"`tools/{tool}`"


def _test(node_id: str) -> str:
    """Return a node id in the folder of tests."""
    return f"`{node_id.removeprefix('tests/')}`"


def link_to(page: str, words: str) -> str:
    """Return a link to the section of a page that has these words.

    Raises:
        ValueError: if the page does not have them.
    """
    text = (ROOT / page).read_text()
    pattern = r"\s+".join(re.escape(word) for word in words.split())
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"{page} no longer says {words!r}: change tools/reliability/promises.py")
    heading = [one[1] for one in _HEADING.finditer(text, 0, found.start())][-1]
    path = page.removeprefix("docs/") if page.startswith("docs/") else f"../{page}"
    return f"[{heading}]({path}#{_anchor(heading)})"


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with escaped cells."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def main() -> int:
    """Write the page."""
    TARGET.write_text(make_page(read_results(), PROMISES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
