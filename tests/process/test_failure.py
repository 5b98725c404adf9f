from __future__ import annotations

import os
import pickle
import signal
import time
from dataclasses import FrozenInstanceError, replace

import pytest
from plaunch.errors import PlaunchError, UsageError
from plaunch.process import child_failed
from plaunch.process.child_failed import ChildFailedError
from plaunch.process.error_file import MAX_READ_BYTES
from plaunch.process.failure import (
    ProcessFailure,
    describe_early_ends,
    describe_exit,
    first_failure,
)


def nested(text="ValueError: bad shape", stack="Traceback ...\nValueError: bad shape", **extra):
    extra = {"py_callstack": stack, "timestamp": "1700000000", **extra}
    return {"message": {"message": text, "extraInfo": extra}}


def failure_at(timestamp, exitcode=1, local_rank=0):
    return ProcessFailure(local_rank, 100 + local_rank, exitcode, "", timestamp=timestamp)


# --- without an error file ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", ["{}", '{"message": null}', '{"message": ""}', '{"message": {}}', "half", ""]
)
def test_a_file_without_a_message_is_not_reported_as_missing(child_file, content):
    path = child_file(content)
    failure = ProcessFailure(0, 4242, 17, path)
    report = str(ChildFailedError("train.py", {0: failure}))
    assert f"error file: {path}" in report
    assert "wrote no error file" not in f"{report}{failure.message}"
    assert failure.message.startswith("PID 4242 ended with exit code 17")
    assert not failure.has_reply


@pytest.mark.parametrize("path", ["", os.devnull, "/no/such/error.json", "/tmp"])
def test_a_missing_error_file_is_reported_as_in_torch(path):
    failure = ProcessFailure(0, 4242, 17, path)
    assert failure.error_file == "<N/A>"
    assert not failure.has_reply
    assert failure.message == "PID 4242 ended with exit code 17 and wrote no error file"
    assert failure.error_file_data == {
        "message": "<NONE>",
        "errorTraits": {"category": "system_terminated_error", "retryability": "False"},
    }


def test_a_signal_is_named_and_has_no_traits():
    failure = ProcessFailure(local_rank=1, pid=7, exitcode=-11, error_file="")
    assert failure.message == "Signal 11 (SIGSEGV) received by PID 7"
    assert failure.signal_name() == "SIGSEGV"
    assert "errorTraits" not in failure.error_file_data


def test_failures_share_no_data():
    first, second = ProcessFailure(0, 1, 1, ""), ProcessFailure(1, 2, -9, "")
    first.error_file_data["mine"] = True
    assert "mine" not in second.error_file_data


def test_the_time_of_detection_has_a_fraction():
    before = time.time()
    failure = ProcessFailure(0, 1, 1, "")
    assert before <= failure.timestamp <= time.time()
    assert isinstance(failure.timestamp, float)


def test_additions_are_keywords_and_default_to_this_host():
    failure = ProcessFailure(0, 1, -9, "", last_lines=["a"], global_rank=8, oom_killed=True)
    assert failure.host == os.uname().nodename
    assert failure.describe_exit() == "killed by the kernel's out-of-memory killer (SIGKILL)"
    with pytest.raises(TypeError):
        ProcessFailure(0, 1, -9, "", ["a"])


@pytest.mark.parametrize(
    ("exitcode", "name", "words"),
    [
        (0, "<N/A>", "exit code 0"),
        (1, "<N/A>", "exit code 1"),
        (17, "<N/A>", "exit code 17"),
        (128, "<N/A>", "exit code 128"),
        (139, "<N/A>", "exit code 139 (128 + SIGSEGV)"),
        (255, "<N/A>", "exit code 255"),
        (-9, "SIGKILL", "killed by SIGKILL (signal 9)"),
        (-45, "<N/A>", "killed by signal 45"),
    ],
)
def test_exits_in_words(exitcode, name, words):
    assert ProcessFailure(0, 1, exitcode, "").signal_name() == name
    assert describe_exit(exitcode) == words


def test_timestamp_isoformat_is_local_time_as_torch_writes_it():
    failure = failure_at(time.mktime((2026, 1, 31, 8, 15, 0, 0, 0, -1)) + 0.25)
    assert failure.timestamp_isoformat() == "2026-01-31_08:15:00.250000"


# --- with an error file ---------------------------------------------------------------------------


def test_the_nested_form_is_read(child_file):
    path = child_file(nested())
    failure = ProcessFailure(0, 1, 1, path)
    assert failure.error_file == path
    assert failure.has_reply
    assert failure.message == nested()["message"]
    assert failure.error_file_data == nested()


def test_the_flat_form_is_read(child_file):
    failure = ProcessFailure(0, 1, 1, child_file({"message": "out of luck", "timestamp": 1.5}))
    assert (failure.message, failure.timestamp) == ("out of luck", 1.5)
    assert failure.has_reply


@pytest.mark.parametrize(
    ("data", "mtime", "expected"),
    [
        # our own field is exact
        (nested(timestamp_ns=1700000000_250000000), 1700000009.0, 1700000000.25),
        # whole seconds, and a file that was written within that second or just after it
        (nested(), 1700000000.75, 1700000000.75),
        (nested(), 1700000001.5, 1700000001.5),
        # the file's own time belongs to something else: a copy, another host's clock
        (nested(), 1700000002.0, 1700000000.0),
        (nested(), 1699999999.9, 1700000000.0),
        # a fraction in torch's place
        (nested(timestamp=1700000000.125), 1700000000.75, 1700000000.125),
        # our field makes no sense, torch's does
        (nested(timestamp_ns="soon"), 1700000000.75, 1700000000.75),
        (nested(timestamp_ns=-1), 1700000000.75, 1700000000.75),
    ],
)
def test_the_time_of_a_failure_is_that_of_the_error_file(child_file, data, mtime, expected):
    assert ProcessFailure(0, 1, 1, child_file(data, mtime)).timestamp == pytest.approx(
        expected, abs=1e-5
    )


@pytest.mark.parametrize(
    "data",
    [
        *(nested(timestamp=t) for t in ("soon", "", None, True, [1], -5, 0, "nan", "inf", 10**400)),
        nested(timestamp_ns=10**19),  # in the future
        nested(timestamp="10000000000"),
        {"message": "x"},  # without a time in the flat form
    ],
)
def test_a_senseless_time_gives_way_to_that_of_detection(child_file, data):
    path = child_file(data)
    before = time.time()
    assert before <= ProcessFailure(0, 1, 1, path).timestamp <= time.time()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ('{"message": {"message": "Val', "not valid JSON, or was cut off"),
        ("[" * 100_000, "not valid JSON, or was cut off"),
        (b"\xff\xfe\x00" * 50, "not valid JSON"),
        ("[1, 2]", "has no 'message' field"),
        ('{"error": "x"}', "has no 'message' field"),
        ('{"message": 3}', "has no 'message' field"),
    ],
)
def test_a_broken_error_file_is_tolerated_and_named(child_file, content, problem):
    path = child_file(content)
    failure = ProcessFailure(2, 4242, 3, path)
    assert failure.message.startswith("PID 4242 ended with exit code 3")
    assert problem in failure.message
    assert repr(path) in failure.message
    assert failure.error_file == path
    assert not failure.has_reply


@pytest.mark.parametrize("size", [MAX_READ_BYTES + 1, 1 << 36])
def test_a_huge_error_file_is_not_read(tmp_path, size):
    path = tmp_path / "error.json"
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(size)
    failure = ProcessFailure(0, 1, 1, str(path))
    assert "is larger than 8 MiB and was not read" in failure.message


def test_a_pipe_in_place_of_the_error_file_does_not_block(tmp_path):
    path = tmp_path / "error.json"
    os.mkfifo(path)
    assert ProcessFailure(0, 1, 1, str(path)).error_file == "<N/A>"


# --- ChildFailedError -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "first"),
    [((10.5, 10.25, 11.0), 1), ((10.5, 10.5, 10.5), 3)],  # of equal ones that which was seen first
)
def test_the_first_failure_is_the_earliest(times, first):
    failures = dict(zip((3, 1, 2), map(failure_at, times), strict=True))
    rank, failure = ChildFailedError("train.py", failures).get_first_failure()
    assert (rank, failure) == (first, failures[first])


def replied(failure):
    data = {"message": {"message": "RuntimeError: connection closed by peer"}}
    return replace(failure, error_file_data=data)


@pytest.mark.parametrize("signum", ["SIGKILL", "SIGSEGV", "SIGBUS", "SIGTERM"])
def test_a_sudden_end_comes_before_the_errors_of_its_peers(signum):
    """The kernel closes a killed worker's connections before anybody can see that it is gone."""
    failures = {
        0: replied(failure_at(99.7)),
        1: failure_at(100.0, exitcode=-signal.Signals[signum]),
        2: replied(failure_at(99.9, exitcode=-signal.SIGTERM)),
    }
    assert first_failure(failures)[0] == 1


@pytest.mark.parametrize(
    "second",
    [
        failure_at(100.0, exitcode=-signal.SIGABRT),  # C++ code that gave up
        failure_at(101.0, exitcode=-signal.SIGKILL),  # too late to be the cause
        failure_at(100.0, exitcode=1),
    ],
)
def test_an_exception_comes_before_its_consequences(second):
    assert first_failure({0: second, 1: replied(failure_at(99.7))})[0] == 1


@pytest.mark.parametrize(
    ("exitcode", "expected"), [(17, 17), (1, 1), (-9, 137), (-15, 143), (0, 1)]
)
def test_the_exit_code_is_that_of_the_first_failure(exitcode, expected):
    failures = {1: failure_at(2.0, exitcode=5), 0: failure_at(1.0, exitcode=exitcode)}
    error = ChildFailedError("train.py", failures)
    assert error.exit_code == expected
    assert isinstance(error, PlaunchError)
    assert PlaunchError.exit_code == 1


def test_it_cannot_be_made_of_nothing():
    with pytest.raises(UsageError, match=r"'train\.py' needs at least one failure"):
        ChildFailedError("train.py", {})


def test_its_text_is_the_report():
    error = ChildFailedError("train.py", {0: failure_at(1.0)}, stopped={1: -15})
    assert str(error) == error.format_msg()
    assert "Stopped by plaunch: rank 1 (SIGTERM)" in str(error)


@pytest.mark.parametrize(
    ("formatter", "why"),
    [("missing.report:format_report", "PluginLoadError: missing, "), ("math:sqrt", "TypeError: ")],
)
def test_a_failure_is_reported_without_the_plugin_report(monkeypatch, child_file, formatter, why):
    monkeypatch.setattr(child_failed, "FAILURE_REPORT", formatter)
    failures = {3: failure_at(4.0, exitcode=-9), -1: failure_at(9.0), 0: failure_at(1.0)}
    failures[0] = replace(failures[0], error_file=child_file("{}"))
    first, file, other, *lines = str(
        ChildFailedError("train.py", failures, counted={"on host b": 7})
    ).splitlines()[1:]
    assert first.startswith("First failure: rank 0 on host ")
    assert first.endswith(": exit code 1")
    assert file == f"Error file: {failures[0].error_file!r}"
    assert other.startswith("Other failure: rank 3 on host ")
    assert other.endswith(": killed by SIGKILL (signal 9)")
    assert lines[0].startswith("Other failure: the launcher on host ")
    assert lines[1] == "and 7 more: on host b"
    assert lines[2].startswith(f"No full report ({why}")


def test_it_travels_between_processes():
    error = ChildFailedError("train.py", {4: failure_at(1.5, exitcode=-6)}, stopped={1: -15})
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, ChildFailedError)
    assert str(copy) == str(error)
    assert (copy.name, copy.failures, copy.stopped) == (error.name, error.failures, error.stopped)
    assert copy.exit_code == 134


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({}, ""),
        ({1: 988.0}, "rank 1 had ended with exit code 0, 12 s before"),
        ({1: 999.66}, "rank 1 had ended with exit code 0, 0.3 s before"),
        ({1: 1000.5}, ""),  # later
        ({1: 988.2, 2: 988.1, 5: 1001.0}, "ranks 1-2 had ended with exit code 0, 12 s before"),
        ({1: 988.0, 2: 900.0}, "ranks 1-2 had ended with exit code 0, 12 s to 1 m 40 s before"),
    ],
)
def test_workers_that_had_ended_early(ended, words):
    assert describe_early_ends(ended, 1000.0) == words
    with_host = words.replace(" had", " on node-b had")
    assert describe_early_ends(ended, 1000.0, "node-b") == with_host


def test_a_failure_without_a_file_is_created_with_what_the_worker_reported():
    data = {"message": "ValueError: no"}
    received = ProcessFailure(0, 42, 1, "", error_file_data=data, timestamp=10.0)
    assert received.error_file == "<N/A>"
    assert received.has_reply
    assert received.message == "ValueError: no"
    assert received.error_file_data == data
    assert received.timestamp == 10.0


def test_a_changed_copy_does_not_read_the_file_again(child_file):
    path = child_file(nested())
    failure = ProcessFailure(0, 42, 1, path)
    os.unlink(path)
    changed = replace(failure, last_lines=["bye"])
    assert replace(changed, last_lines=[]) == failure
    with pytest.raises(FrozenInstanceError):
        failure.last_lines = ["bye"]


def test_a_message_of_the_launcher_is_not_a_reply_of_the_worker():
    described = ProcessFailure(0, 42, 1, "", message="its result cannot be read")
    assert not described.has_reply
    assert described.text == "its result cannot be read"


def test_the_first_failure_must_be_one_of_them():
    failures = {0: failure_at(1), 1: failure_at(2)}
    assert ChildFailedError("train.py", failures, first=1).get_first_failure()[0] == 1
    with pytest.raises(UsageError, match=r"rank 2 is not among the failures of 'train\.py'"):
        ChildFailedError("train.py", failures, first=2)
