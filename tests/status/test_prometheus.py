"""The metrics for Prometheus, read with its own parser."""

from __future__ import annotations

import math
import pathlib
import re

import pytest
from plaunch.agent import Progress, Snapshot
from plaunch.process import OutputCounts
from plaunch_events import LauncherStatus
from plaunch_status.counters import BOUNDS, Counters

pytest.importorskip("prometheus_client")

from plaunch_status import prometheus as exposition
from prometheus_client.parser import text_string_to_metric_families

from helpers.event_streams import Stream

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "metrics.md"


class Scraped:
    def __init__(self):
        self.status, self.counters = LauncherStatus("job", "trainer"), Counters()
        self.output = OutputCounts()
        self.stream = Stream(self.take)
        self.dropped = {}
        self.progress = {}

    def take(self, event):
        self.status.note(event)
        self.counters.note(event, self.status.history.phase)

    def families(self):
        families = exposition.find_families(
            self.status,
            self.counters,
            Snapshot(
                "HEALTHY",
                0,
                0,
                (),
                {},
                output=self.output,
                dropped=self.dropped,
                progress=self.progress,
            ),
            started=1000.0,
        )
        page = exposition.metrics_page(families)
        assert page.kind.startswith("text/plain; version=0.0.4")
        return list(text_string_to_metric_families(page.text.decode()))

    def values(self):
        return {
            (
                sample.name,
                *(f"{key}={value}" for key, value in sorted(sample.labels.items())),
            ): sample.value
            for family in self.families()
            for sample in family.samples
        }

    def check(self, wanted):
        values = self.values()
        assert {key: values.get(key) for key in wanted} == wanted


@pytest.fixture
def scraped():
    return Scraped()


def test_before_the_first_event(scraped):
    scraped.check(
        {
            ("plaunch_start_time_seconds",): 1000.0,
            ("plaunch_alive",): 1,
            ("plaunch_rounds_total",): 0,
            ("plaunch_restarts_total", "cause=failure"): 0,
            ("plaunch_restarts_total", "cause=membership"): 0,
            ("plaunch_phase", "phase=starting"): 1,
            ("plaunch_phase", "phase=training"): 0,
            ("plaunch_group_state", "state=INIT"): 1,
            ("plaunch_workers", "state=running"): 0,
            ("plaunch_world_size",): None,
            ("plaunch_round",): None,
            ("plaunch_tee_bytes_total",): 0,
        }
    )


def test_facts_of_the_launch(scraped):
    scraped.stream.begin()
    (info,) = [family for family in scraped.families() if family.name == "plaunch_info"]
    (sample,) = info.samples
    assert sample.labels.items() >= {"run_id": "job", "backend": "c10d", "role": "trainer"}.items()
    assert set(sample.labels) == {"version", "run_id", "role", "host", "backend"}


def test_a_job_with_a_failure_and_an_arrival(scraped):
    stream = scraped.stream
    stream.begin()
    stream.form(10)
    stream.fail(112)
    stream.tell(115, "rendezvous.begun")
    stream.form(116, attempt=1, round=1)
    for waiting in (1.5, 2.5):
        stream.tell(118, "restart.completed", seconds_noticing=0.25, seconds_waiting=waiting)
    stream.tell(200, "membership.changed", kind="arrived", node="node2", reason="")
    stream.tell(200, "stop.step", step="signalled", signal_name="SIGTERM", seconds=0.0)
    stream.end(201, 0, -15, stopped=True, signal_name="SIGTERM")
    stream.end(201, 1, 0)
    stream.tell(201, "rendezvous.begun")
    stream.tell(203, "rendezvous.failed", duration=2.0, reason="")
    stream.tell(203, "rendezvous.begun")
    stream.form(204, attempt=1, round=2, nodes=3)
    stream.tell(300, "signal.received", signum=10, signal_name="SIGUSR1", action="notify")
    stream.end(301, 0, 0)
    scraped.check(
        {
            ("plaunch_rounds_total",): 3,
            ("plaunch_rendezvous_failures_total",): 1,
            ("plaunch_restarts_total", "cause=failure"): 1,
            ("plaunch_restarts_total", "cause=membership"): 1,
            ("plaunch_restart_seconds_total", "part=noticing"): 0.5,
            ("plaunch_restart_seconds_total", "part=stopping"): 0.0,
            ("plaunch_restart_seconds_total", "part=waiting"): 4.0,
            ("plaunch_membership_changes_total", "kind=arrived"): 1,
            ("plaunch_round",): 2,
            ("plaunch_attempt",): 1,
            ("plaunch_world_size",): 6,
            ("plaunch_nodes",): 3,
            ("plaunch_max_restarts",): 3,
            ("plaunch_local_world_size",): 2,
            ("plaunch_workers", "state=running"): 1,
            ("plaunch_workers", "state=succeeded"): 1,
            ("plaunch_worker_exits_total", "exit_code=", "signal=SIGKILL", "state=failed"): 1,
            ("plaunch_worker_exits_total", "exit_code=", "signal=SIGTERM", "state=stopped"): 2,
            ("plaunch_worker_exits_total", "exit_code=0", "signal=", "state=succeeded"): 2,
            ("plaunch_signals_received_total", "action=notify", "signal=SIGUSR1"): 1,
            ("plaunch_phase", "phase=training"): 1,
            # Two full rounds trained, for 100 and for 82 seconds; the third one still does.
            ("plaunch_phase_duration_seconds_count", "phase=training"): 2,
            ("plaunch_phase_duration_seconds_sum", "phase=training"): 182,
            ("plaunch_phase_duration_seconds_bucket", "le=60.0", "phase=training"): 0,
            ("plaunch_phase_duration_seconds_bucket", "le=300.0", "phase=training"): 2,
            ("plaunch_phase_duration_seconds_bucket", "le=+Inf", "phase=training"): 2,
            ("plaunch_phase_duration_seconds_sum", "phase=rendezvous"): 10 + 1 + 2 + 1,
            ("plaunch_phase_duration_seconds_count", "phase=stopping"): 3,
            ("plaunch_phase_duration_seconds_sum", "phase=starting"): 6,
        }
    )


def test_output_and_dropped_events(scraped):
    scraped.output = OutputCounts(read_bytes=1000, lag_bytes=14, dropped_lines=6)
    scraped.dropped = {"jsonl": 4}
    scraped.check(
        {
            ("plaunch_tee_bytes_total",): 1000,
            ("plaunch_tee_lag_bytes",): 14,
            ("plaunch_tee_dropped_lines_total",): 6,
            ("plaunch_events_dropped_total", "handler=jsonl"): 4,
        }
    )


def test_progress_of_workers(scraped):
    scraped.progress = {4: Progress(30, 100, 0.5), 5: Progress(7)}
    scraped.check(
        {
            ("plaunch_worker_step", "global_rank=4"): 30,
            ("plaunch_worker_total_steps", "global_rank=4"): 100,
            ("plaunch_worker_steps_per_second", "global_rank=4"): 0.5,
            ("plaunch_worker_seconds_left", "global_rank=4"): 140,
            ("plaunch_worker_step", "global_rank=5"): 7,
            ("plaunch_worker_total_steps", "global_rank=5"): None,
            ("plaunch_worker_seconds_left", "global_rank=5"): None,
        }
    )


def test_odd_texts_are_escaped(scraped):
    stream = scraped.stream
    stream.tell(0, "membership.changed", kind='a"b\\c\nd')
    scraped.check({("plaunch_membership_changes_total", 'kind=a"b\\c\nd'): 1})


def test_counters_and_histograms_only_grow(scraped):
    stream, seen = scraped.stream, {}
    acts = [
        stream.begin,
        lambda: stream.form(10),
        lambda: stream.fail(20),
        lambda: stream.form(30, attempt=1, round=1),
        lambda: stream.tell(40, "launcher.finished", outcome="succeeded", exit_code=0),
    ]
    for act in acts:
        act()
        now = {
            key: value
            for key, value in scraped.values().items()
            if key[0].endswith(("_total", "_bucket", "_count", "_sum"))
        }
        assert all(now[key] >= value for key, value in seen.items())
        seen = now


def test_buckets_are_cumulative_and_bounds_ascend(scraped):
    assert list(BOUNDS) == sorted(set(BOUNDS))
    for seconds in (0.1, 0.11, 1e9):
        scraped.counters.phases["training"].add(seconds)
    buckets = {
        float(key[1].partition("=")[2]): value
        for key, value in scraped.values().items()
        if key[0].endswith("_bucket") and key[2] == "phase=training"
    }
    assert buckets[0.1] == 1
    assert buckets[0.5] == buckets[86400.0] == 2
    assert buckets[math.inf] == 3


def test_names_follow_prometheus_and_are_documented(scraped):
    stream = scraped.stream
    stream.begin()
    stream.form(10)
    documented = set(re.findall(r"^\| `(plaunch_[a-z_]+)`", DOCS.read_text(), re.MULTILINE))
    names = set()
    for family in scraped.families():
        is_counter = family.type == "counter"
        names.add(family.name + ("_total" if is_counter else ""))
        assert family.name.startswith("plaunch_")
        assert family.documentation.endswith((".", ": 1."))
        assert is_counter or not family.name.endswith("_total")
    assert names == documented
