from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import stat
import sys
import time

import pytest
from plaunch.process import ChildFailedError, ProcessFailure
from plaunch_torchrun import error_handler
from plaunch_torchrun.error_files import MAX_TEXT_CHARS, write_error_file
from plaunch_torchrun.error_handler import (
    ErrorHandler,
    dump_root_cause,
    get_error_handler,
    record,
)

from helpers.programs import run_python


def read(path):
    return json.loads(path.read_text())


def nested(text="ValueError: bad", **fields):
    extra = {"py_callstack": "Traceback ...", "timestamp": "1700000000"}
    return {"message": {"message": text, "extraInfo": extra, **fields}}


# --- record ---------------------------------------------------------------------------------------


def test_a_good_run_passes_arguments_and_result(error_file):
    @record
    def main(first, *, second):
        """Train."""
        return first + second

    assert main(1, second=2) == 3
    assert (main.__name__, main.__doc__) == ("main", "Train.")
    assert not error_file.exists()


def test_an_exception_is_recorded_in_torchs_format(error_file):
    @record
    def main():
        raise ValueError("bad shape")

    before = time.time()
    with pytest.raises(ValueError, match="bad shape"):
        main()
    message = read(error_file)["message"]
    extra = message["extraInfo"]
    assert message["message"] == "ValueError: bad shape"
    assert extra["py_callstack"].startswith("Traceback (most recent call last):")
    assert 'raise ValueError("bad shape")' in extra["py_callstack"]
    assert extra["py_callstack"].endswith("ValueError: bad shape\n")
    assert extra["timestamp"] == str(extra["timestamp_ns"] // 10**9)
    assert before <= extra["timestamp_ns"] / 1e9 <= time.time()


def test_the_recorded_time_is_read_back_exactly(error_file):
    with pytest.raises(ValueError, match="x"):
        record(lambda: int("x"))()
    failure = ProcessFailure(0, 1, 1, str(error_file))
    nanoseconds = read(error_file)["message"]["extraInfo"]["timestamp_ns"]
    assert failure.timestamp == pytest.approx(nanoseconds / 1e9, abs=1e-5)


def test_causes_are_part_of_the_traceback(error_file):
    @record
    def main():
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise RuntimeError("outer") from error

    with pytest.raises(RuntimeError):
        main()
    stack = read(error_file)["message"]["extraInfo"]["py_callstack"]
    assert stack.index("KeyError: 'inner'") < stack.index("RuntimeError: outer")


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("value", [None, ""])
def test_without_an_error_file_the_exception_just_passes(monkeypatch, value):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", value)
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0)()


@pytest.mark.parametrize(
    "ending", [SystemExit(1), SystemExit(17), SystemExit("why"), SystemExit(), KeyboardInterrupt()]
)
def test_other_exits_pass_and_are_not_recorded(error_file, ending):
    def main():
        raise ending

    with pytest.raises(type(ending)) as caught:
        record(main)()
    assert caught.value is ending
    assert not error_file.exists()
    # Exit 0 becomes a result.
    assert record(lambda: sys.exit(0))() is None
    assert not error_file.exists()


def test_a_handler_of_the_users_own_is_used(error_file):
    class Collector(ErrorHandler):
        def __init__(self):
            self.calls = []

        def initialize(self):
            self.calls.append("initialize")

        def record_exception(self, e):
            self.calls.append(repr(e))

    collector = Collector()
    with pytest.raises(ValueError, match="bad"):
        record(lambda: (_ for _ in ()).throw(ValueError("bad")), collector)()
    assert collector.calls == ["initialize", "ValueError('bad')"]
    assert not error_file.exists()


class CallRecorder(ErrorHandler):
    """Records the calls, with the name of the function at that time."""

    def __init__(self):
        self.calls = []

    def initialize(self):
        self.calls.append(("initialize", self._fn_name))

    def record_exception(self, e):
        self.calls.append(("record_exception", self._fn_name))

    def record_success(self):
        self.calls.append(("record_success", self._fn_name))


def train():
    return 5


def fail():
    raise ValueError("bad")


def leave():
    sys.exit(0)


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (train, [("initialize", "train"), ("record_success", "train")]),
        (fail, [("initialize", "fail"), ("record_exception", "fail")]),
        (leave, [("initialize", "leave")]),  # as in torch 2.15
        (functools.partial(train), [("initialize", None), ("record_success", None)]),
    ],
)
def test_a_handler_knows_the_function_and_its_success(function, calls):
    chronicle = CallRecorder()
    with contextlib.suppress(ValueError):
        record(function, chronicle)()
    assert chronicle.calls == calls


def test_an_error_of_record_success_is_not_a_failure_of_the_function():
    class Broken(CallRecorder):
        def record_success(self):
            raise OSError("no telemetry")

    broken = Broken()
    with pytest.raises(OSError, match="no telemetry"):
        record(train, broken)()
    assert broken.calls == [("initialize", "train")]


def test_a_handler_from_before_torch_2_15():
    class Old:
        def initialize(self):
            pass

        def record_exception(self, e):
            raise AssertionError

    assert record(train, Old())() == 5


def test_faulthandler_is_turned_on(enabled, error_file):
    record(lambda: None)()
    assert enabled == [{"all_threads": True}]


def test_a_process_without_stderr_still_runs(monkeypatch, caplog, error_file):
    def refuse(**_kwargs):
        raise RuntimeError("sys.stderr is None")

    monkeypatch.setattr(faulthandler, "enable", refuse)
    assert record(lambda: 5)() == 5
    assert "faulthandler is off in this process: sys.stderr is None" in caplog.text


def test_get_error_handler_gives_the_default():
    assert type(get_error_handler()) is ErrorHandler


# --- difficult exceptions -------------------------------------------------------------------------


class Rude(Exception):
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "text", "stack"),
    [
        (Rude(), "Rude: <its text is not available: RuntimeError>", None),
        (ValueError("by hand"), "ValueError: by hand", "ValueError: by hand\n"),
        (ValueError("ünï \udcff \x00 \U0001f600"), "ValueError: ünï \udcff \x00 \U0001f600", None),
    ],
    ids=["without a text", "never raised", "of any characters"],
)
def test_a_difficult_exception_is_recorded(error_file, error, text, stack):
    get_error_handler().record_exception(error)
    message = read(error_file)["message"]
    assert message["message"] == text
    assert text.partition(":")[0] in message["extraInfo"]["py_callstack"]
    assert stack in (None, message["extraInfo"]["py_callstack"])


def test_a_huge_text_keeps_its_ends(error_file):
    ErrorHandler().record_exception(ValueError("a" * MAX_TEXT_CHARS + "the end"))
    text = read(error_file)["message"]["message"]
    assert text.startswith("ValueError: aaa")
    assert text.endswith("the end")
    assert "characters left out" in text
    assert error_file.stat().st_size < 3 * MAX_TEXT_CHARS


def test_a_deep_recursion_is_recorded(error_file):
    def deeper():
        deeper()

    with pytest.raises(RecursionError):
        record(deeper)()
    assert read(error_file)["message"]["message"].startswith("RecursionError:")


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("enabled")
def test_a_failed_write_never_hides_the_exception(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0)()
    assert "cannot be written" in caplog.text


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "error.json"
    path.write_text("earlier, and longer than what follows " * 10)
    reader = path.open()
    write_error_file(str(path), {"message": "new"})
    assert read(path) == {"message": "new"}
    assert reader.read().startswith("earlier"), "the old file was written over in place"
    reader.close()
    assert os.listdir(tmp_path) == ["error.json"]


def test_a_writer_that_fails_half_way_leaves_no_half_file(tmp_path, monkeypatch):
    path = tmp_path / "error.json"

    def refuse(*_args):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    write_error_file(str(path), {"message": "in place"})  # as for a file that is a mount point
    assert read(path) == {"message": "in place"}
    assert os.listdir(tmp_path) == ["error.json"]


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "error.json")
    write_error_file(str(tmp_path / "link.json"), {"message": "x"})
    assert (tmp_path / "link.json").is_symlink()
    assert read(tmp_path / "error.json") == {"message": "x"}


def test_what_is_not_a_regular_file_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "error.json"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_error_file(str(path), {"message": "x"})
    assert json.loads(os.read(reader, 1000)) == {"message": "x"}
    os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


# --- handing the root cause up --------------------------------------------------------------------


def child_failed(error_file="", exitcode=17, **more):
    return ChildFailedError("train.py", {3: ProcessFailure(0, 42, exitcode, error_file, **more)})


FLAT = {"message": "bad", "timestamp": 3}


@pytest.mark.parametrize(
    ("data", "code", "copied"),
    [
        (nested(), (17,), nested(errorCode=17)),
        (nested(), (), nested()),
        (FLAT, (-9,), {**FLAT, "errorCode": -9}),
    ],
)
def test_a_childs_file_is_copied_with_its_exit_code(
    error_file, child_file, caplog, data, code, copied
):
    error_file.touch()  # one that is empty is replaced without a word
    ErrorHandler().dump_error_file(child_file(data), *code)
    assert read(error_file) == copied
    assert caplog.text == ""


def test_a_broken_childs_file_is_logged_and_nothing_is_written(error_file, child_file, caplog):
    ErrorHandler().dump_error_file(child_file("{"), 17)
    assert not error_file.exists()
    [(logger, _, text)] = caplog.record_tuples
    assert logger == "plaunch"
    assert "the root cause cannot be copied" in text


def test_what_is_replaced_is_logged(error_file, child_file, caplog):
    error_file.write_text(json.dumps(nested("KeyError: 'mine'")))
    ErrorHandler().dump_error_file(child_file(nested()), 1)
    assert "exists and is replaced; it said: KeyError: 'mine'" in caplog.text
    error_file.write_text("rubbish")
    ErrorHandler().dump_error_file(child_file(nested()), 1)
    assert "not valid JSON" in caplog.text
    assert read(error_file) == nested(errorCode=1)


def test_record_copies_a_childs_failure(error_file, child_file):
    error = child_failed(child_file(nested("KeyError: 'deep'")), exitcode=-6)

    def main():
        raise error

    with pytest.raises(ChildFailedError) as caught:
        record(main)()
    assert caught.value is error
    assert read(error_file) == nested("KeyError: 'deep'", errorCode=-6)


def test_the_root_cause_outlives_its_file(error_file, child_file):
    path = child_file(nested())
    error = child_failed(path)
    os.unlink(path)
    dump_root_cause(error)
    assert read(error_file) == nested(errorCode=17)
    assert "errorCode" not in error.failures[3].error_file_data["message"]


def test_a_worker_without_an_error_file_is_reported_by_its_last_lines(error_file):
    lines = ["Fatal Python error", "Segmentation fault"]
    error = child_failed(exitcode=-11, last_lines=lines, timestamp=1700000000.25)
    dump_root_cause(error)
    assert read(error_file) == {
        "message": {
            "message": "Signal 11 (SIGSEGV) received by PID 42",
            "errorCode": -11,
            "extraInfo": {
                "py_callstack": "Fatal Python error\nSegmentation fault",
                "timestamp": "1700000000",
                "timestamp_ns": 1700000000_250000000,
            },
        }
    }
    again = ProcessFailure(0, 1, 1, str(error_file))
    assert again.timestamp == pytest.approx(1700000000.25, abs=1e-5)


def test_an_exit_without_output_is_reported_with_torchs_traits(error_file):
    dump_root_cause(child_failed())
    data = read(error_file)
    assert data["errorTraits"]["category"] == "system_terminated_error"
    assert data["message"]["errorCode"] == 17
    assert "py_callstack" not in data["message"]["extraInfo"]


@pytest.mark.parametrize(
    ("content", "ended", "words"),
    [
        ("", {"exitcode": -9, "oom_killed": True}, "out-of-memory killer"),
        ("{", {}, "not valid JSON"),  # a broken error file is passed on as such
    ],
)
def test_it_is_reported_in_words(error_file, child_file, content, ended, words):
    dump_root_cause(child_failed(child_file(content) if content else "", **ended))
    assert words in read(error_file)["message"]["message"]


def test_nothing_is_written_without_an_error_file(monkeypatch, tmp_path, child_file):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    dump_root_cause(child_failed())
    dump_root_cause(child_failed(child_file(nested())))
    assert os.listdir(tmp_path) == ["child.json"]


def test_a_root_cause_without_a_message_keeps_its_form(caplog):
    data = {"error": 1}
    ErrorHandler().override_error_code_in_rootcause_data("child.json", data, 5)
    assert data == {"error": 1}
    assert "'child.json' has no 'message' field" in caplog.text


# --- what a site adds to failures by signals ------------------------------------------------------


@pytest.fixture
def device_faults(monkeypatch):
    """Install a site's handler; returns its calls."""
    asked = []

    class DeviceFaults(ErrorHandler):
        def maybe_enrich_signal_failure_message(self, message, error_file):
            asked.append((message, error_file))
            return f"{message}\nGPU 3: memory fault at 0x7f00"

    monkeypatch.setattr(error_handler, "get_error_handler", DeviceFaults)
    return asked


def test_a_site_adds_to_the_report_of_a_signal(device_faults):
    failure = ProcessFailure(0, 42, -6, "")
    error = ChildFailedError("train.py", {3: failure})
    sentence = "Signal 6 (SIGABRT) received by PID 42"
    for report in (str(error), error.for_console()):
        assert f"  message:    {sentence}\n              GPU 3: memory fault at 0x7f00\n" in report
    assert set(device_faults) == {(sentence, "<N/A>")}
    assert failure.message == sentence


def test_a_site_adds_to_the_traceback_of_a_signal(device_faults, child_file):
    error = child_failed(child_file(nested()), exitcode=-6)
    assert str(error).endswith("    Traceback ...\n    GPU 3: memory fault at 0x7f00")


def test_the_console_shows_the_addition_below_lines_that_it_has_shown(device_faults):
    shown = ProcessFailure(0, 42, -6, "", last_lines=["Aborted"], is_shown=True)
    assert "GPU 3" in ChildFailedError("train.py", {0: shown}).for_console()


@pytest.mark.parametrize(
    "failure", [{"exitcode": 0}, {"exitcode": 1}, {"exitcode": -6, "host": "another"}]
)
def test_a_site_adds_only_to_failures_by_signals_on_its_host(device_faults, failure):
    str(child_failed(**failure))
    assert device_faults == []


def test_a_site_that_fails_does_not_hide_the_failure(monkeypatch, caplog):
    class Broken(ErrorHandler):
        def maybe_enrich_signal_failure_message(self, message, error_file):
            raise OSError("no logs")

    monkeypatch.setattr(error_handler, "get_error_handler", Broken)
    assert "killed by SIGABRT" in str(child_failed(exitcode=-6))
    assert "maybe_enrich_signal_failure_message failed (OSError: no logs)" in caplog.text


# --- in a real process ----------------------------------------------------------------------------


def run(code, tmp_path):
    error_file = str(tmp_path / "error.json")
    return run_python("-c", code, env={**os.environ, "TORCHELASTIC_ERROR_FILE": error_file})


def test_a_script_under_record_ends_as_it_would_without(tmp_path):
    code = "from plaunch.process import record\n@record\ndef main(): 1/0\nmain()"
    done = run(code, tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert read(tmp_path / "error.json")["message"]["message"].startswith("ZeroDivisionError: ")


def test_a_fatal_signal_leaves_the_stacks_on_stderr(tmp_path):
    code = (
        "import os, signal\nfrom plaunch.process import record\n"
        "@record\ndef main(): os.kill(os.getpid(), signal.SIGSEGV)\nmain()"
    )
    done = run(code, tmp_path)
    assert done.returncode == -11
    assert "Segmentation fault" in done.stderr
    assert "in main" in done.stderr


def test_record_loads_little(tmp_path):
    code = (
        "import sys\nbefore = set(sys.modules)\n"
        "from plaunch.process import record\n"
        "record(lambda: None)()\n"
        "print(sorted({'torch', 'json', 'logging', 'subprocess', 'traceback', 'pluggy', 'socket'}"
        " & (set(sys.modules) - before)))"
    )
    assert run(code, tmp_path).stdout == "[]\n"
