"""The labels of the timeline, and the text of the page, without a browser."""

from __future__ import annotations

import pytest

pytest.importorskip("bokeh")

from plaunch_report.charts import create_charts
from plaunch_report.cli import main


def labels(runs):
    """The labels of the timeline, from top to bottom."""
    summary = runs.builder()[0].create_summary()
    found = {}

    def search(value):
        if isinstance(value, dict):
            if "major_label_overrides" in value:
                found.update(value["major_label_overrides"]["entries"])
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                search(item)

    search(create_charts(summary))
    return [text for _, text in sorted(found.items())]


def test_rows_of_workers_have_their_ranks(runs):
    runs.elastic()
    said = " ".join(labels(runs))
    assert said == "a rank 0 rank 1 b rank 2 rank 3 c rank 4 rank 5"


def test_a_label_has_all_ranks_of_a_worker(runs):
    agent = runs.agent("a").start(0, workers=1)
    for number, rank in enumerate((2, 0, 2, 1, 3)):
        at = 10.0 * number
        agent.join(at, at + 1, at + 2, round=number, world=4, nodes=4, rank=rank)
        agent.stop_all(at + 9)
    agent.finish(60, "failed", 1).write()
    assert labels(runs) == ["a", "ranks 2, 0, 1, ..."]


def test_labels_of_nodes_have_the_ranks_if_rows_are_too_low(runs):
    runs.large(nodes=3, workers=200)
    assert labels(runs) == [
        "node-000: ranks 0-199",
        "node-001: ranks 200-399",
        "node-002: ranks 400-599",
    ]


def test_the_page_begins_with_the_first_failure_of_the_run(runs, tmp_path):
    agent = runs.agent("a").start(0)
    for attempt, cause in enumerate(("the loss is nan", "port taken")):
        at = 10 * attempt
        agent.join(at, at + 1, at + 2, round=attempt, attempt=attempt, world=2, nodes=1, rank=0)
        agent.fail(at + 5, attempt, attempt, message=cause, last_lines=f"last lines: {cause}")
    agent.finish(20, "failed", 1).write()
    path = tmp_path / "report.html"
    assert main([str(runs.folder), "-o", str(path)]) == 0
    html = path.read_text()
    _, _, rest = html.partition('<section id="first-cause"')
    section, _, _ = rest.partition("</section>")
    first, _, final = section.partition('<p id="final-cause">')
    assert "<b>Rank 0</b> on" in first
    assert "last lines: the loss is nan" in first
    assert "port taken" not in first
    assert "The last one, round 1, failed with <b>rank 1</b>" in final
    assert "port taken" in final
