"""Error files of workers, in torch's format and others."""

from __future__ import annotations

import json
import tempfile

from plaunch.process import ChildFailedError, ProcessFailure
from plaunch.process.error_file import ErrorFileError, read_error_file, timestamp_of
from plaunch_events.schema import failure_metadata
from plaunch_membership.failures import FailureSummary, summarize
from plaunch_membership.process_failures import from_job_failures, to_job_failures
from plaunch_membership.records import RecordCodec

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import check_equal, check_message

WORDS = tuple(
    f'"{word}"'.encode()
    for word in (
        "message", "extraInfo", "py_callstack", "timestamp", "timestamp_ns", "errorCode",
        "not_retryable", "Traceback (most recent call last):", "plaunch",
    )
)  # fmt: skip


def check(data):
    """Report a worker with this error file, on its own node and on another one."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            content = read_error_file(file.name)
        except ErrorFileError:
            content = None
        failure = ProcessFailure(0, 7, 1, file.name, global_rank=0, host="h", timestamp=5.0)
    if content is not None:
        if not timestamp_of(content, 100.0, 200.0) <= 200.0:
            raise Finding("a time in the future")
        json.dumps(failure_metadata(0, failure), allow_nan=False)
    _check_report(failure)
    told = summarize(to_job_failures({0: failure}))
    codec = RecordCodec("job")
    record = codec.decode("key", codec.encode("key", told.to_record()))
    again = FailureSummary.from_record(record)
    check_equal(again, told, "a failure is another one on another node")
    failures, _ = from_job_failures(again.failures, {})
    for one in failures.values():
        _check_report(one)
        check_equal(one.exitcode, failure.exitcode, "the exit code on another node")


def _check_report(failure):
    error = ChildFailedError("train.py", {0: failure})
    check_message(failure.headline, 5000)
    check_message(str(error), 500_000)
    check_message(error.for_console(), 500_000)
    failure.timestamp_isoformat()
    if error.exit_code not in range(1, 256):
        raise Finding(f"exit code {error.exit_code}")
