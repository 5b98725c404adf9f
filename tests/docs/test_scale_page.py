"""docs/scale.md: its tables are those of tools/scale, made from the figures of its last run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/scale"
sys.path.insert(0, str(TOOL))
try:
    import cluster_model
    import scale_page
    from costs import StoreCosts
finally:
    sys.path.remove(str(TOOL))

COSTS = StoreCosts(
    **{name: 1e-4 for name in StoreCosts.__dataclass_fields__ if not name.endswith("bytes")},
    connection_bytes=4096,
    server_bytes=16 << 20,
)


def test_its_tables_are_up_to_date():
    page = scale_page.PAGE.read_text(encoding="utf-8")
    assert scale_page.fill_in(page, scale_page.read_figures()) == page, (
        "run `python tools/scale --model`"
    )


def test_a_page_without_a_place_for_a_table_is_an_error():
    with pytest.raises(ValueError, match="has no place for the table 'machine'"):
        scale_page.fill_in("# Scale\n", scale_page.read_figures())


def test_the_model_goes_through_all_that_happens_to_a_job():
    found = cluster_model.JobModel(5, COSTS, cluster_model.ModelSettings()).figures()
    assert found.nodes == 5
    assert found.requests > 3
    assert 0 < found.failure <= found.failure_round
    assert 0.25 < found.killed <= found.killed_round
    assert found.store > 0
    assert found.repeated == 0


def test_in_the_model_a_full_backlog_delays_nodes_by_a_second():
    settings = cluster_model.ModelSettings(backlog=2)
    job = cluster_model.JobModel(5, COSTS, settings)
    assert job.form() > 1.0
    assert job.server.repeated > 0
