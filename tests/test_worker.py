"""What workers say of themselves: in real processes, read as the launcher reads it."""

from __future__ import annotations

import faulthandler
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plaunch import record, worker
from plaunch.errors import UsageError
from plaunch.process import ProcessFailure
from plaunch.restarts import failure_of

from helpers.programs import run_python

TORCHS = "torch.distributed.elastic.multiprocessing.errors"
GIVE_UP = "plaunch.worker.give_up('no such dataset')"
RECORDED = """\
import plaunch
@plaunch.record
def main():
"""
# A worker, whose last word is not what ends it.
FINALLY = f"""\
    try:
        {GIVE_UP}
    finally:
        raise RuntimeError("the clean-up has failed")
main()
"""
# Of a process that a DataLoader, for example, has forked.
CHILD = f"""\
    import os
    if os.fork() == 0:
        {GIVE_UP}
    code = os.waitstatus_to_exitcode(os.wait()[1])
    raise RuntimeError(f"my child has exit code {{code}}")
main()
"""


def read(exitcode, path):
    """What restart policies are told of a worker."""
    failure = ProcessFailure(0, 4242, exitcode, str(path))
    return failure_of({3: failure}, 3, started=1.0, attempt=0)


@pytest.fixture
def run(tmp_path):
    """Run a script as a worker: what policies are told, and its stderr."""

    def call(text, **variables):
        path, script = tmp_path / "error.json", tmp_path / "train.py"
        script.write_text(text)
        environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(path), **variables}
        done = run_python(script, env=environ)
        return read(done.returncode, path), done.stderr

    return call


def test_importing_it_imports_nothing_else():
    code = (
        "import sys; old = set(sys.modules); import plaunch.worker; print(*set(sys.modules) - old)"
    )
    found = run_python("-c", code, check=True).stdout.split()
    ours = {name for name in found if name.startswith("plaunch")}
    assert ours == {"plaunch", "plaunch._version", "plaunch.lazy", "plaunch.worker"}
    assert {name.partition(".")[0] for name in found} <= {
        *("plaunch", "__future__", "importlib", "warnings"),
        *sys.builtin_module_names,
    }


def test_giving_up(run):
    script = f"import plaunch\n\ndef main():\n    {GIVE_UP}\n\nmain()\n"
    found, err = run(script)
    assert (found.is_retryable, found.retry_after, found.exitcode) == (False, None, 1)
    assert (found.message, found.exception, found.place) == ("no such dataset", "", "train.py:4")
    assert found.failures[3].traceback.splitlines()[-1] == "gives up: no such dataset"
    assert err == "gives up: no such dataset\n"


def test_asking_for_time(run):
    found, err = run("import plaunch\nplaunch.worker.retry_later(90, 'Disk: full')\n")
    assert (found.is_retryable, found.retry_after, found.exitcode) == (True, 90.0, 1)
    assert (found.message, found.exception, found.place) == ("Disk: full", "", "train.py:2")
    assert err == "requests another start after 90 s: Disk: full\n"
    found, _ = run("from plaunch.worker import retry_later\nretry_later(0)\n")
    assert (found.retry_after, found.message) == (0.0, "requests another start after 0 s")


@pytest.mark.parametrize(
    "script",
    [
        f"import plaunch\ntry:\n    {GIVE_UP}\nexcept Exception:\n    pass\n",
        f"{RECORDED}    {GIVE_UP}\nmain()\n",
        f"{RECORDED}{FINALLY}",
        f"{RECORDED}{CHILD}",
        f"import plaunch, threading, time\nthreading.Thread(target=lambda: {GIVE_UP}).start()\n"
        "time.sleep(60)\n",
        f"import os, plaunch\nos.fork() and os._exit(os.wait()[1] >> 8)\n{GIVE_UP}\n",
    ],
    ids=["in a try", "recorded", "in a finally", "in a child", "in a thread", "after a fork"],
)
def test_it_is_the_workers_last_word(run, script):
    found, err = run(script)
    assert (found.message, found.is_retryable, found.exitcode) == ("no such dataset", False, 1)
    assert "gives up: no such dataset\n" in err


@pytest.mark.slow
def test_torchs_record_leaves_it_alone(run):
    pytest.importorskip("torch")
    found, _ = run(
        f"{RECORDED}    {GIVE_UP}\nmain()\n".replace("@plaunch", "@torchs").replace(
            "import plaunch\n", f"import plaunch\nimport {TORCHS} as torchs\n"
        )
    )
    assert (found.message, found.is_retryable, found.exitcode) == ("no such dataset", False, 1)


def test_an_earlier_word_of_another_run_does_not_stay(run):
    run(f"import plaunch\n{GIVE_UP}\n")
    found, _ = run(f"{RECORDED}    int('x')\nmain()\n")
    assert (found.exception, found.is_retryable) == ("ValueError", None)


def test_the_exception_that_was_being_handled_is_reported(run):
    script = f"import plaunch\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    {GIVE_UP}\n"
    found, _ = run(script)
    assert (found.exception, found.place) == ("", "train.py:5")
    assert "ZeroDivisionError: division by zero\n" in found.failures[3].traceback


@pytest.mark.parametrize(
    ("variable", "said"),
    [("", ""), ("/gone/error.json", "The launcher does not know: FileNotFoundError: ")],
)
def test_without_an_error_file_the_reason_is_on_stderr(run, variable, said):
    found, err = run(f"import plaunch\n{GIVE_UP}\n", TORCHELASTIC_ERROR_FILE=variable)
    assert found.exitcode == 1
    assert err.startswith("gives up: no such dataset\n")
    assert said in err
    assert "Traceback" not in err


def test_a_worker_without_streams_gives_up_as_well(run):
    found, _ = run(f"import plaunch, sys\nsys.stdout = sys.stderr = None\n{GIVE_UP}\n")
    assert (found.message, found.exitcode) == ("no such dataset", 1)


@pytest.mark.parametrize("reason", ["", " \n", None])
def test_a_reason_that_is_none(tmp_path, monkeypatch, reason):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    with pytest.raises(SystemExit) as caught:
        worker.give_up(reason)
    assert caught.value.code == 1
    assert read(1, tmp_path / "error.json").message in ("no reason given", "None")


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "90", "1m", None, True, 1e10])
def test_what_is_no_time_is_refused_at_once(tmp_path, monkeypatch, seconds):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    with pytest.raises(ValueError, match="is not a number of seconds from 0 up to 1000000000"):
        worker.retry_later(seconds)
    assert not (tmp_path / "error.json").exists()


# --- record ---------------------------------------------------------------------------------------

MARKED = """\
import sys
from plaunch import record
class ConfigError(ValueError): ...
class KeyMissing(ConfigError): ...
class Own:
    def initialize(self): ...
    def record_exception(self, e): ...
{import_}
@record({argument})
def main():
    raise {error}("lr")
main()
"""


@pytest.mark.parametrize(
    ("argument", "error", "expected"),
    [
        ("not_retryable=ConfigError", "ConfigError", False),
        ("not_retryable=(KeyError, ConfigError)", "KeyMissing", False),
        ("not_retryable=(KeyError, ConfigError)", "ValueError", None),
        ("error_handler=Own(), not_retryable=ConfigError", "ConfigError", False),
        ("", "ConfigError", None),
    ],
)
def test_classes_after_which_no_start_helps(run, argument, error, expected):
    found, err = run(MARKED.format(argument=argument, error=error, import_=""))
    assert (found.exception, found.message) == (error, f"{error}: lr")
    assert (found.is_retryable, found.exitcode) == (expected, 1)
    assert found.place == "train.py:11"
    assert err.endswith(f"{error}: lr\n")


@pytest.mark.slow
def test_torchs_handler_can_be_given(run):
    pytest.importorskip("torch")
    argument = "error_handler=ErrorHandler(), not_retryable=ConfigError"
    import_ = f"from {TORCHS} import ErrorHandler"
    found, _ = run(MARKED.format(argument=argument, error="ConfigError", import_=import_))
    assert (found.message, found.is_retryable) == ("ConfigError: lr", False)


def test_a_mark_outlives_another_record_around_it(run):
    script = (
        "from plaunch import record\n"
        "@record\ndef main():\n    inner()\n"
        "@record(not_retryable=KeyError)\ndef inner():\n    raise KeyError\nmain()\n"
    )
    found, _ = run(script)
    assert (found.exception, found.is_retryable) == ("KeyError", False)


@pytest.mark.parametrize(
    "wrong", ["ConfigError", None, 5, [KeyError], (KeyError, "x"), int, SystemExit, KeyError()]
)
def test_what_is_no_class_of_exceptions_is_refused_where_it_is_written(wrong):
    with pytest.raises(UsageError, match="write a class of exceptions, or a tuple of them"):
        record(print, not_retryable=wrong)


def test_a_mark_that_cannot_be_written_hides_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(faulthandler, "enable", lambda **_: None)  # pytest has its own
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    with pytest.raises(KeyError):
        record({}.__getitem__, not_retryable=KeyError)("x")
    assert "cannot be written" in caplog.text


# --- torch's files and ours -----------------------------------------------------------------------

names = st.from_regex(r"[A-Z][a-z]{0,8}", fullmatch=True)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(name=names, text=st.text(max_size=400), depth=st.integers(0, 3), has_cause=st.booleans())
def test_error_files_of_torch_are_read_as_plaunchs(tmp_path_factory, name, text, depth, has_cause):
    torchs = pytest.importorskip(TORCHS)
    path = tmp_path_factory.mktemp("files") / "error.json"
    kind = type(name, (Exception,), {})

    def fail(depth):
        if depth:
            fail(depth - 1)
        raise kind(text) from KeyError("before") if has_cause else None

    def told(record):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
            patch.setattr(faulthandler, "enable", lambda **_: None)  # pytest has its own
            with pytest.raises(kind):
                record(fail)(depth)
        found = read(1, path)
        path.unlink()
        return found.exception, found.message, found.place, found.is_retryable, found.retry_after

    assert told(torchs.record) == told(record)


def test_heartbeats_load_on_first_use():
    code = (
        "import sys\n"
        "from plaunch import worker\n"
        "before = 'plaunch_hang.worker' in sys.modules\n"
        "worker.heartbeat, worker.section\n"
        "print(before, 'plaunch_hang.worker' in sys.modules, hasattr(worker, 'pulse'))\n"
    )
    assert run_python("-c", code, check=True).stdout == "False True False\n"
