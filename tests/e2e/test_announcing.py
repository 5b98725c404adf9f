"""Messages about a failed job of one node: complete, and without repetition."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.usefixtures("loud")

FAILS = "import os, time; int(os.environ['RANK']) and exit(7); time.sleep(60)"
# The other rank runs until the launcher has waited for a second.
SLOW = """\
import os, signal, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists("ready"):
        time.sleep(0.01)
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), sys.exit(0)))
open("ready", "w").close()
time.sleep(60)
"""
RECORDED = """\
from plaunch import record
@record
def main():
    raise ValueError("no luck today")
main()
"""


def said(done):
    """The launcher's own lines, without the first one and the time accounting."""
    lines = done.stderr.splitlines()
    assert done.returncode == 7 or "no luck" in done.stderr, done.stderr
    about_time = ("plaunch: restarted in", "plaunch: this launch took")
    quiet = ("plaunch: run id", *about_time)
    return [line for line in lines if line.strip() and not line.startswith(quiet)]


def test_a_failure_is_reported_once(plaunch):
    script = plaunch.write("train.py", FAILS)
    first, *report = said(plaunch.run("--nproc-per-node=2", script))
    assert re.fullmatch(r"plaunch: rank 1 on \S+ failed after .* s: exit code 7", first)
    assert all(line.startswith("  ") for line in report)
    assert "  stopped because of it: rank 0 (SIGTERM)" in report
    assert not [line for line in report if line.startswith("plaunch:") or "N/A" in line]


def test_a_failure_before_a_restart_is_reported_once(plaunch):
    script = plaunch.write("train.py", FAILS)
    restart, *report = said(plaunch.run("--nproc-per-node=2", "--max-restarts=1", script))
    assert re.search(r"rank 1 on \S+ \(pid \d+\) failed: exit code 7; restart 1 of 1$", restart)
    assert report[0].startswith("plaunch: rank 1 on ")
    assert re.fullmatch(r"  attempt 0: rank 1 .* failed: exit code 7, after .* s", report[-1])


@pytest.mark.parametrize("options", [[], ["--tee=2"], ["--redirects=2"]])
def test_a_traceback_is_shown_once(plaunch, options):
    script = plaunch.write("train.py", "raise ValueError('no luck today')")
    done = plaunch.run("--log-dir=logs", *options, script)
    found = [line for line in done.stderr.splitlines() if "Error: no luck today" in line]
    assert len(found) == 2
    assert len([line for line in found if re.match(r"plaunch: rank 0 on \S+ failed", line)]) == 1


def test_the_reason_for_stopping_slow_workers_is_logged(plaunch):
    script = plaunch.write("train.py", SLOW)
    *both, report = said(plaunch.run("--nproc-per-node=2", script))[:3]
    waits, why = sorted(both)
    assert "waiting for local rank 0 to end after SIGTERM" in waits
    assert re.search(r"rank 1 on .* failed: exit code 7; all workers are stopped$", why)
    assert "plaunch: rank 1 on " in report


def test_the_report_names_existing_files(plaunch):
    script = plaunch.write("train.py", RECORDED)
    lines = said(plaunch.run("--log-dir=logs", "--tee=1", "--redirects=2", script))
    files = [line.split()[-1] for line in lines if " file: " in line]
    assert [path.rpartition("/")[2] for path in files] == ["stdout.log", "stderr.log", "error.json"]
    for path in files:
        with open(path) as file:
            file.read()


def test_the_report_does_not_name_deleted_files(plaunch):
    lines = said(plaunch.run(plaunch.write("train.py", RECORDED)))
    assert lines.count("ValueError: no luck today") == 1
    assert not [line for line in lines if " file: " in line]
