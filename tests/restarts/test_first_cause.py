"""The `Failure` that restart policies get, from real error files and real output."""

from __future__ import annotations

import json
import os

import pytest
from plaunch.process import ProcessFailure
from plaunch.restarts import Cause, RestartPolicy, failure_of

from helpers.programs import run_python

SCRIPT = """
import sys
from {module} import record

class Odd:
    class ConfigError(Exception):
        pass

@record
def main():
    {body}

main()
"""
PLAUNCH, TORCH = "plaunch", "torch.distributed.elastic.multiprocessing.errors"


def observe(failure, **facts):
    return failure_of({3: failure}, 3, **{"started": 2.0, "attempt": 1, **facts})


def run_script(tmp_path, text):
    """The result of a script: its exit code, error file and stderr."""
    path, script = tmp_path / "error.json", tmp_path / "train.py"
    script.write_text(text)
    environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)}
    done = run_python(script, env=environ)
    return done.returncode, str(path), done.stderr.splitlines()


def recorded(tmp_path, body, module=PLAUNCH):
    """The failure of a script whose main function has this body."""
    code, path, _ = run_script(tmp_path, SCRIPT.format(module=module, body=body))
    return observe(ProcessFailure(3, 4242, code, path))


def unrecorded(tmp_path, text):
    """The failure of a script without `record`."""
    code, _, lines = run_script(tmp_path, text)
    return observe(ProcessFailure(3, 4242, code, "", last_lines=lines))


# --- error files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [PLAUNCH, pytest.param(TORCH, marks=pytest.mark.slow)])
def test_an_exception_that_was_recorded(tmp_path, module) -> None:
    if module == TORCH:
        pytest.importorskip("torch")
    found = recorded(tmp_path, "raise ValueError('bad shape')", module)
    assert (found.exception, found.message) == ("ValueError", "ValueError: bad shape")
    assert found.place == "train.py:11"
    assert (found.is_retryable, found.retry_after) == (None, None)
    assert (found.cause, found.rank, found.exitcode) == (Cause.WORKER, 3, 1)
    assert (found.started, found.attempt, found.host) == (2.0, 1, os.uname().nodename)


@pytest.mark.parametrize(
    ("body", "exception", "message"),
    [
        ("raise Odd.ConfigError", "Odd.ConfigError", "ConfigError:"),
        ("raise json.JSONDecodeError('x', 'y', 0)", "json.decoder.JSONDecodeError", "x: line 1"),
        ("raise KeyError from ValueError('the cause')", "KeyError", "KeyError:"),
        (
            "raise RuntimeError('Caught it\\nTraceback:\\n  File \"a.py\", line 7, in b\\nE: no')",
            "RuntimeError",
            "RuntimeError: Caught it",
        ),
        ("exec(chr(10).join(['def']))", "SyntaxError", "SyntaxError:"),
    ],
)
def test_unusual_exceptions(tmp_path, body, exception, message) -> None:
    found = recorded(tmp_path, f"import json; {body}")
    assert found.exception == exception
    assert message in found.message
    assert "\n" not in found.message
    assert found.place == ("<string>:1" if "exec" in body else "train.py:11")


def test_the_place_is_the_users_own_last_line(tmp_path) -> None:
    body = "import json; json.loads('{')"
    assert recorded(tmp_path, body).place == "train.py:11"


@pytest.mark.parametrize(
    ("message", "exception"),
    [("RuntimeError: no", "RuntimeError"), ("pkg.Lost: x", "pkg.Lost"), ("CUDA error: x", "")],
)
def test_an_error_file_without_a_traceback(child_file, message, exception) -> None:
    found = observe(ProcessFailure(0, 7, 1, child_file({"message": message})))
    assert (found.exception, found.place, found.message) == (exception, "", message)


@pytest.mark.parametrize(
    ("traits", "expected"),
    [
        ({"retryability": "False"}, (False, None)),
        ({"retryability": True, "retry_after": 60}, (True, 60.0)),
        ({"retryability": "TRUE", "retry_after": "1.5"}, (True, 1.5)),
        ({"retryability": "perhaps", "retry_after": "soon"}, (None, None)),
        ({"retry_after": -1}, (None, None)),
        ({"retry_after": "nan"}, (None, None)),
        ({"retry_after": True}, (None, None)),
        ({"retry_after": "inf"}, (None, 1e9)),
        ("a text", (None, None)),
        ([], (None, None)),
    ],
)
def test_a_worker_may_allow_or_forbid_a_restart(child_file, traits, expected) -> None:
    path = child_file({"message": "gave up", "errorTraits": traits})
    found = observe(ProcessFailure(0, 7, 3, path))
    assert (found.is_retryable, found.retry_after) == expected


@pytest.mark.parametrize("content", [None, {"message": ""}, "half a fi"])
def test_torchs_own_fields_are_not_the_workers_request(child_file, content) -> None:
    failure = ProcessFailure(0, 7, 3, "" if content is None else child_file(content))
    found = observe(failure)
    if content is None:
        assert failure.error_file_data["errorTraits"]["retryability"] == "False"
    assert (found.is_retryable, found.exception) == (None, "")
    assert found.message == "exit code 3"


def test_fields_passed_on_by_an_inner_launcher_are_ignored(child_file) -> None:
    traits = {"category": "system_terminated_error", "retryability": "False"}
    path = child_file({"message": "exit code 3", "errorTraits": traits})
    assert observe(ProcessFailure(0, 7, 3, path)).is_retryable is None


# --- without an error file ------------------------------------------------------------------------


def test_a_script_without_record_is_described_by_its_traceback(tmp_path) -> None:
    found = unrecorded(tmp_path, "import sys\n\nprint(undefined)\n")
    assert found.exception == "NameError"
    assert found.message == "NameError: name 'undefined' is not defined"
    assert found.place == "train.py:3"
    assert found.last_lines[-1] == found.message


def test_a_script_that_cannot_be_compiled(tmp_path) -> None:
    found = unrecorded(tmp_path, "a = 1\nb = = 2\n")
    assert (found.exception, found.place) == ("SyntaxError", "train.py:2")


def test_an_exit_without_an_exception(tmp_path) -> None:
    """An exception that was caught and printed before is not the cause."""
    caught = "import traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\n"
    found = unrecorded(tmp_path, f"{caught}raise SystemExit(4)\n")
    assert (found.exception, found.place, found.message) == ("", "", "exit code 4")


def test_lines_that_torch_marks_with_the_rank() -> None:
    lines = [  # as if the first lines were lost
        '[rank3]:   File "/home/me/train.py", line 12, in <module>',
        "[rank3]:     main()",
        "[rank3]: torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "[rank3]:[W1122 ProcessGroupNCCL.cpp] Warning: not destroyed",
    ]
    found = observe(ProcessFailure(0, 7, 1, "", last_lines=lines))
    assert found.exception == "torch.cuda.OutOfMemoryError"
    assert found.message == "torch.cuda.OutOfMemoryError: CUDA out of memory."
    assert found.place == "train.py:12"


def test_an_end_by_a_signal() -> None:
    failure = ProcessFailure(0, 7, -11, "")
    found = observe(failure)
    assert (found.cause, found.message) == (Cause.WORKER, "killed by SIGSEGV (signal 11)")
    assert found.time == failure.began < failure.timestamp
    failure = ProcessFailure(0, 7, -9, "", oom_killed=True)
    assert observe(failure).cause is Cause.OUT_OF_MEMORY
    assert observe(failure, cause=Cause.HANG).cause is Cause.HANG


def test_a_long_message_is_cut(child_file) -> None:
    found = observe(ProcessFailure(0, 7, 1, child_file({"message": "x" * 5000})))
    assert len(found.message) == 300
    assert found.message.endswith("... (5000 characters)")


# --- the contract ---------------------------------------------------------------------------------


def test_all_failed_workers_are_listed() -> None:
    failures = {rank: ProcessFailure(rank, 7 + rank, 1, "") for rank in (3, 1)}
    found = failure_of(failures, 1, started=1.0, attempt=0)
    assert (found.rank, dict(found.failures)) == (1, failures)


def test_an_object_with_decide_is_a_policy() -> None:
    class Policy:
        def decide(self, failure, history):
            return None

    assert isinstance(Policy(), RestartPolicy)
    assert not isinstance(json, RestartPolicy)


def test_the_import_does_not_import_the_contract() -> None:
    code = "import sys, plaunch.restarts; print(*(m for m in sys.modules if 'restarts.' in m))"
    assert run_python("-c", code, check=True).stdout.split() == []
