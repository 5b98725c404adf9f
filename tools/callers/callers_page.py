"""The table in docs/callers.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libraries import Library
    from scenarios import Scenario, Verdict

PAGE = ROOT / "docs/callers.md"
COMMAND = "python tools/callers --write"
MARK = f"<!-- {COMMAND} -->"
HEAD = "| library | what was run | verdict |\n|---|---|---|\n"


def row_of(library: Library, scenario: Scenario, verdict: Verdict) -> str:
    """Return one row."""
    sentence = verdict.sentence.replace("|", "\\|").replace("\n", " ")
    return f"{key_of(library, scenario)}{verdict.word}: {sentence} |\n"


def key_of(library: Library, scenario: Scenario) -> str:
    """Return the first columns of a row."""
    return f"| {library.versions} | {scenario.text} | "


def read_rows(text: str) -> dict[str, str]:
    """Return the rows of the table in a page, by their first columns."""
    _, table, _ = text.split(MARK)
    rows = table.strip().splitlines(keepends=True)[2:]
    return {f"{row.rpartition(' | ')[0]} | ": f"{row.rstrip()}\n" for row in rows}


def word_of(row: str) -> str:
    """Return the verdict of a row, without its sentence; empty if there is no row."""
    return row.rpartition(" | ")[2].partition(":")[0]


def merge_rows(text: str, new: Mapping[str, str], order: list[str]) -> str:
    """Return the page with new rows; the others stay if `order` has their first columns."""
    before, _, after = text.split(MARK)
    rows = {**read_rows(text), **new}
    table = HEAD + "".join(rows[key] for key in order if key in rows)
    return f"{before}{MARK}\n{table}{MARK}{after}"
