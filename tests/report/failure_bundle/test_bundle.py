"""Writing bundles: their files, their names, and errors."""

from __future__ import annotations

import errno
import json
import logging
import os
import queue
import threading
import zipfile
from dataclasses import replace
from functools import partial

import pytest
from plaunch.agent import RunResult, WorkerState
from plaunch.errors import UsageError
from plaunch.events import Event, EventSource
from plaunch.process import ProcessFailure
from plaunch.threads import FinalWork
from plaunch_report.failure_bundle import bundle
from plaunch_report.failure_bundle.extension import FailureBundles
from plaunch_report.failure_bundle.history import (
    FIRST_EVENTS,
    LAST_EVENTS,
    FailedAttempt,
    FailureHistory,
)
from plaunch_report.plugin import plaunch_extensions, read_folder

from helpers.hooks import context_of


def event(name, **recorded):
    common = {"attempt": 0, "run_id": "job", "reason": ""}
    return Event(f"plaunch.{name}", EventSource.AGENT, 1e9, {**common, **recorded}, 5.0)


def failure(rank, message, *, is_first=False, **recorded):
    about = {
        "global_rank": rank, "failed_host": "node7", "worker_pid": 100 + rank, "exit_code": 3,
        "message": message, "error_file": None, "last_lines": "a\nb", "is_first": is_first,
    }  # fmt: skip
    return event("failure", **{**about, **recorded})


def write(folder, failed=None, times=None, **settings):
    """Write a bundle without parts that take long and depend on the machine."""
    failed = failed or FailedAttempt("train.py", 0, reason="it broke")
    write_short(failed, context_of(**settings), folder, times)


def write_short(failed, context, folder, times=None, run=lambda words, until, run_id: b"said\n"):
    times = bundle.BundleTimes(**(times or {}))
    parts = partial(bundle.create_parts, run=run, kernel_log=os.devnull)
    bundle.write_bundle(failed, context, str(folder), times, parts)


def read(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "plaunch")
    return caplog


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_bundle_is_private_to_its_owner(tmp_path, monkeypatch, umask):
    """From its first byte on, because other users may read the folder."""
    modes = []

    def note(archive, info, data, add=zipfile.ZipFile.writestr):
        modes.extend(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        add(archive, info, data)

    monkeypatch.setattr(zipfile.ZipFile, "writestr", note)
    previous = os.umask(umask)
    try:
        write(tmp_path)
    finally:
        os.umask(previous)
    (path,) = tmp_path.iterdir()
    assert {*modes, path.stat().st_mode & 0o777} == {0o600}
    with zipfile.ZipFile(path) as archive:
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o600}


def test_no_name_is_used_twice(tmp_path, logged):
    for _ in range(3):
        write(tmp_path)
    names = ["failure-0.1.zip", "failure-0.2.zip", "failure-0.zip"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert f"failure bundle: {tmp_path / 'failure-0.2.zip'} (" in logged.text


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    write(tmp_path)
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "failure-0.1.zip", "failure-0.zip",
    ]  # fmt: skip
    assert read(tmp_path / "failure-0.1.zip")["report.txt"] == "train.py: it broke\n"


def test_missing_parts_are_listed(tmp_path):
    write(tmp_path)
    files = read(tmp_path / "failure-0.zip")
    assert sorted(files) == [
        "contents.txt", "doctor.txt", "events.jsonl", "plan.txt", "report.txt", "versions.txt",
    ]  # fmt: skip
    contents = files["contents.txt"]
    assert contents.startswith("run 'job', attempt 0, on node7: train.py failed\n")
    assert "\nlogs: there are none" in contents
    assert "\nkernel.txt: the kernel's log has no line about" in contents
    assert f"\nreport.txt: {len(files['report.txt'])} bytes\n" in contents


def test_a_part_that_hangs_is_left_out(tmp_path, gate, logged):
    failed = FailedAttempt("train.py", 0)

    def hang(words, until, run_id):
        gate.wait()

    write_short(failed, context_of(), tmp_path, {"parts": 0.4}, hang)
    files = read(tmp_path / "failure-0.zip")
    assert files.keys() == {
        "report.txt",
        "events.jsonl",
        "versions.txt",
        "plan.txt",
        "contents.txt",
    }
    assert "\ndoctor.txt: not finished within 0." in files["contents.txt"]
    assert logged.messages[1:] == [
        "the failure bundle is incomplete: within 9.2 s there was no time for doctor.txt"
    ]


def test_files_without_time_left_are_listed(tmp_path, logged):
    write(tmp_path, times={"files": 0.0})
    files = read(tmp_path / "failure-0.zip")
    assert files.keys() == {"contents.txt"}
    assert "\nreport.txt: left out, as there was no time left\n" in files["contents.txt"]
    assert logged.messages[1:] == [
        "the failure bundle is incomplete: within 0 s there was no time for report.txt, "
        "events.jsonl, versions.txt, plan.txt and 1 more"
    ]


def test_a_part_that_does_not_exist_is_no_lack_of_time(tmp_path, logged):
    write(tmp_path)
    assert "\nlogs: there are none" in read(tmp_path / "failure-0.zip")["contents.txt"]
    assert len(logged.messages) == 1


def test_a_bundle_that_hangs_is_abandoned(tmp_path, monkeypatch, logged, gate):
    monkeypatch.setattr(os, "makedirs", lambda *args, **options: gate.wait())
    write(tmp_path, times={"bundle": 0.2})
    assert logged.messages == [
        "no failure bundle: it was not written within 0.2 s; the machine is busy, or a folder does "
        "not answer"
    ]


@pytest.mark.parametrize("calls", [[(zipfile.ZipFile, "writestr")], [(os, "link"), (os, "rename")]])
def test_a_full_disk_is_one_line(tmp_path, monkeypatch, logged, calls):
    def fill(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for owner, name in calls:
        monkeypatch.setattr(owner, name, fill)
    write(tmp_path)
    assert logged.messages == [f"no failure bundle is written: {tmp_path}: No space left on device"]
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_is_written(tmp_path, logged):
    write("")
    (message,) = logged.messages
    assert message.startswith("no failure bundle: the run has no folder; give --log-dir or")


def test_a_launch_from_code_has_a_plan_of_its_settings(tmp_path):
    write(tmp_path, nproc_per_node=2, rdzv_configs={"password": "hidden", "timeout": "3"})
    plan = read(tmp_path / "failure-0.zip")["plan.txt"]
    assert "nproc_per_node = 2\n" in plan
    assert "rdzv_configs = {'password': '<withheld>', 'timeout': '3'}\n" in plan


def test_a_fork_does_not_wait_for_programs(tmp_path):
    failed = FailedAttempt("train", 1, is_restart=True)
    write(tmp_path, failed, start_method="fork")
    files = read(tmp_path / "failure-1.zip")
    assert files.keys() == {"report.txt", "events.jsonl", "versions.txt", "contents.txt"}
    assert "\ndoctor.txt: not collected before workers are forked again" in files["contents.txt"]


# --- the failed attempt ---------------------------------------------------------------------------


def failed_of(*events, result=None):
    history = FailureHistory()
    for one in events:
        history.note(one)
    return history.describe_failure(events[-1], result)


def test_a_restart_is_the_failure_of_the_attempt_before(tmp_path):
    (tmp_path / "attempt_0" / "0").mkdir(parents=True)
    recorded = {"message": {"message": "ValueError: odd", "extraInfo": {"py_callstack": "Trace"}}}
    (tmp_path / "attempt_0" / "0" / "error.json").write_text(json.dumps(recorded))
    failed = failed_of(
        event("launcher.started", entry_point="train.py"),
        *(
            event("worker.started", local_rank=n, global_rank=4 + n, worker_pid=n)
            for n in (0, 1, 2)
        ),
        failure(5, "later"),
        failure(4, "ValueError: odd", is_first=True, error_file="/elsewhere/error.json"),
        event("worker.exited", local_rank=2, worker_pid=2, stopped=True, exit_code=-15),
        event("restart", attempt=1, reason="rank 4 failed", cause="failure"),
    )
    assert (failed.attempt, failed.pids, failed.is_restart) == (0, {0, 1, 2}, True)

    class Specs:
        root_log_dir = temporary_dir = str(tmp_path)

    write(tmp_path / "out", failed, logs_specs=Specs())
    files = read(tmp_path / "out" / "failure-0.zip")
    report = files["report.txt"]
    assert report.startswith("train.py FAILED: rank 4 on node7: ValueError: odd\n")
    assert "    Trace\n" in report
    assert "rank 5 (local rank 1) on node7, pid 105" in report
    assert "Stopped by plaunch: rank 6 (SIGTERM)" in report
    assert json.loads(files["error-files/rank-4.json"]) == recorded
    assert len(files["events.jsonl"].splitlines()) == 8


def test_removed_error_files_are_restored_from_the_failure(tmp_path):
    gone = tmp_path / "error.json"
    gone.write_text('{"message": "all is lost"}')
    worker = ProcessFailure(0, 7, 1, str(gone), global_rank=0)
    gone.unlink()
    result = RunResult(WorkerState.FAILED, failures={0: worker})
    write(tmp_path, FailedAttempt("train.py", 0, result=result))
    files = read(tmp_path / "failure-0.zip")
    assert json.loads(files["error-files/rank-0.json"]) == {"message": "all is lost"}
    assert "all is lost" in files["report.txt"]


def test_the_number_of_kept_events_is_limited():
    history = FailureHistory()
    for number in range(FIRST_EVENTS + LAST_EVENTS + 30):
        history.note(event("state.changed", number=number))
    failed = history.describe_failure(event("launcher.finished", outcome="error"))
    numbers = [one.metadata["number"] for one in failed.events]
    assert numbers[:FIRST_EVENTS] == [*range(FIRST_EVENTS)]
    assert numbers[FIRST_EVENTS:] == [*range(FIRST_EVENTS + 30, FIRST_EVENTS + LAST_EVENTS + 30)]
    assert failed.left_out == 30


# --- the extension --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "recorded", "expected"),
    [
        ("last", [event("launcher.finished", outcome="failed")], ["failure-0.zip"]),
        ("last", [event("launcher.finished", outcome="error")], ["failure-0.zip"]),
        ("all", [event("launcher.finished", outcome="succeeded")], []),
        ("all", [event("launcher.finished", outcome="signalled")], []),
        ("all", [event("launcher.finished", outcome="not_needed")], []),
        ("all", [], []),
        ("last", [event("restart", attempt=1, cause="failure")], []),
        ("all", [event("restart", attempt=1, cause="failure")], ["failure-0.zip"]),
        ("all", [event("restart", attempt=0, cause="membership")], []),
    ],
)
def test_only_failures_have_bundles(tmp_path, which, recorded, expected):
    extension = FailureBundles(context_of(), str(tmp_path), which, write_short)
    for one in recorded:
        extension.handle(one)
    extension.stop(None)
    for thread in threading.enumerate():
        if isinstance(thread, FinalWork):
            thread.join()
    assert [path.name for path in tmp_path.iterdir()] == expected


def test_the_number_of_simultaneous_bundles_is_limited(tmp_path, logged, gate):
    begun = queue.Queue()

    def write(failed, *_):
        begun.put(failed.attempt)
        gate.wait()

    extension = FailureBundles(context_of(), str(tmp_path), "all", write)
    for attempt in range(1, 6):
        extension.handle(event("restart", attempt=attempt, cause="failure"))
    extension.handle(event("launcher.finished", attempt=5, outcome="failed"))
    extension.stop(None)
    assert sorted(begun.get(timeout=60) for _ in range(5)) == [0, 1, 2, 3, 5]
    assert logged.messages == ["no failure bundle of attempt 4: 4 others are being written"]


def test_uncounted_restarts_have_separate_bundles(tmp_path):
    written = queue.Queue()
    extension = FailureBundles(
        context_of(), str(tmp_path), "all", lambda failed, *_: written.put(failed)
    )
    for attempt, following in ((0, 0), (0, 1), (1, 1)):
        extension.handle(event("workers.started", attempt=attempt))
        extension.handle(event("restart", attempt=following, cause="failure"))
        extension.rest()
    found = [written.get(timeout=60) for _ in range(3)]
    assert [(one.attempt, one.repeat) for one in found] == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{}/file", "which is not a folder; give another folder"),
        ("{}/file/below", "and '{}/file' is not a folder; give another folder"),
        ("{}/name.zip", "so it should be a folder"),
        ("a\0b", "which is not a valid path"),
        ("x" * 4000, "which is not a valid path"),
        ("\ud800", "which is not a valid path"),
        (7, "give the path of a folder"),
        (b"x", "give the path of a folder"),
    ],
)
def test_invalid_folders(tmp_path, given, problem):
    (tmp_path / "file").touch()
    given = given.format(tmp_path) if isinstance(given, str) else given
    with pytest.raises(UsageError) as raised:
        read_folder(given)
    assert problem.format(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_not_writable(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    with pytest.raises(UsageError, match=r"and '.*' is not writable for this user"):
        read_folder(tmp_path / "new" / "folder")


def test_nothing_is_created_before_a_failure(tmp_path):
    assert read_folder(str(tmp_path / "new")) == str(tmp_path / "new")
    assert read_folder("") == read_folder(None) == ""
    assert list(tmp_path.iterdir()) == []


def test_none_creates_no_extension(tmp_path):
    options = {"failure_bundle": str(tmp_path / "new"), "failure_bundles": "none"}
    assert plaunch_extensions(replace(context_of(), options=options)) == []
