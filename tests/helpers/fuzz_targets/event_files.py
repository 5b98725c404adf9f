"""Event files, and what plaunch-report makes of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from plaunch.errors import UsageError
from plaunch_report.cli import _as_json
from plaunch_report.event_files import read_folders
from plaunch_report.launches import choose_launch, choose_run
from plaunch_report.summary import SummaryBuilder

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import check_equal, check_message

MAX_LENGTH = 8192
WORDS = tuple(
    f'"{word}"'.encode()
    for word in (
        "name", "timestamp", "monotonic", "metadata", "run_id", "host", "agent_pid", "group_rank",
        "ranks", "round", "attempt", "plaunch.launcher.started", "plaunch.rendezvous.completed",
        "plaunch.worker.started", "plaunch.worker.exited", "plaunch.failure", "plaunch.restart",
        "plaunch.launcher.finished", "plaunch.state.changed", "plaunch.stop.step", "global_rank",
        "local_rank", "exit_code", "outcome", "seconds_total", "master_addr", "group_world_size",
        "plaunch.membership.changed", "duration", "new", "old", "local_world_size", "is_first",
    )
)  # fmt: skip


def check(data):
    """Make a summary of a file; lines that are not events are counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "events.jsonl")
        path.write_bytes(data)
        try:
            files = read_folders([folder])
        except UsageError as error:
            check_message(str(error))
            return
        lines = [line for line in data.split(b"\n") if line.strip()]
        events = sum(1 for _ in files.records())
        counted = events + files.torn + files.unreadable
        if counted > len(lines):
            raise Finding(f"{counted} events and lines that are not, in {len(lines)} lines")
        for run in sorted({agent.run_id for agent in files.agents}):
            agents, number, count = choose_launch(choose_run(files.agents, run), None)
            summary = SummaryBuilder(agents, files, number, count).create_summary()
            text = "".join(_as_json(summary))
            check_equal(json.loads(text)["run_id"], run, "the run")
            if (
                text.encode(errors="replace").decode() != text
                or "NaN" in text
                or "Infinity" in text
            ):
                _refuse_numbers(text)


def _refuse_numbers(text):
    def refuse(name):
        raise Finding(f"a summary with {name}, which is not JSON")

    json.loads(text, parse_constant=refuse)
    text.encode()
