"""The health check `command`: real programs."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from plaunch.errors import UsageError
from plaunch_doctor.health_command import CommandCheck

from helpers.occasions import RESTART, SHORT
from helpers.processes import is_gone
from helpers.waiting import wait_until


@pytest.fixture
def script(tmp_path):
    """Write a program and return its path."""

    def write(text):
        path = tmp_path / "check node.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def check(script, context):
    """Make a check that runs this program."""
    return lambda text, *words: CommandCheck(context(f"'{script(text)}' {' '.join(words)}"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("echo one; echo; echo ' two '; echo", "check node.sh: two"),
        ("exit 0", "check node.sh succeeded"),
        ("echo bad >&2; exit 3", "! check node.sh ended with exit code 3: bad"),
        ("exit 4", "! check node.sh ended with exit code 4"),
        ("kill -SEGV $$", "! check node.sh was killed by SIGSEGV (signal 11)"),
        (
            "printf 'a\\033[31mb\\377'; exit 1",
            "! check node.sh ended with exit code 1: a\\x1b[31mb�",
        ),
    ],
)
def test_the_exit_code_is_the_status_and_the_last_line_the_reason(check, run, text, found):
    assert run(check(text)) == [found]


def test_long_lines_are_truncated_and_large_output_is_discarded(check, run):
    text = "head -c 3000000 /dev/zero | tr '\\0' x; exit 1"
    (found,) = run(check(text))
    assert len(found) < 400
    assert found.endswith("xxx... (65536 characters)")


def test_it_gets_its_arguments_and_the_occasion(check, run, monkeypatch):
    monkeypatch.setenv("PLAUNCH_RDZV_TOKEN", "not for it")
    text = 'echo "$1 $2 $PLAUNCH_HEALTH_OCCASION $TORCHELASTIC_RUN_ID $PLAUNCH_RDZV_TOKEN."'
    asked = check(text, "'a b'", "c")
    assert run(asked) == ["check node.sh: a b c start job ."]
    assert run(asked, RESTART) == ["check node.sh: a b c restart job ."]


def test_children_that_hold_its_output_open_do_not_delay_it(check, run, tmp_path):
    text = f"sleep 300 & echo $! > '{tmp_path}/pid'; echo done"
    assert run(check(text)) == ["check node.sh: done"]
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)


def hanging(folder):
    return f"sleep 300 & echo $! > '{folder}/pid'; mv '{folder}/pid' '{folder}/up'; echo up; wait"


def test_it_is_killed_with_its_group_after_the_time_limit(check, run, tmp_path):
    (found,) = run(check(hanging(tmp_path)), SHORT)
    assert found == "! check node.sh has not ended within 0.27 s, and was killed: up"
    wait_until(lambda: is_gone(int((tmp_path / "up").read_text())), "the end of its child")


def test_the_end_of_the_launch_kills_it(check, run, tmp_path):
    asked = check(hanging(tmp_path))
    thread = threading.Thread(target=run, args=(asked,), daemon=True)
    thread.start()
    wait_until((tmp_path / "up").exists, "the program")
    asked.close()
    wait_until(lambda: is_gone(int((tmp_path / "up").read_text())), "the end of its child")
    thread.join(30)
    assert not thread.is_alive()
    assert run(asked) == []  # starts nothing after close


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "has no program; write --health-check=command:PROGRAM"),
        (" ", "has no program"),
        ("'", "No closing quotation"),
        ("/no/such/program -x", "'/no/such/program' of the health check 'command' does not exist"),
    ],
)
def test_invalid_programs_are_refused(context, text, said):
    with pytest.raises(UsageError, match=said):
        CommandCheck(context(text))


def test_a_file_without_execute_permission_is_refused(context, tmp_path):
    path = tmp_path / "notes.txt"
    path.touch(0o644)
    with pytest.raises(UsageError, match=r"notes\.txt' of the health check 'command' may not be"):
        CommandCheck(context(str(path)))


def test_a_program_that_was_deleted_is_a_finding(script, context, run):
    path = script("exit 0")
    asked = CommandCheck(context(f"'{path}'"))
    path.unlink()
    assert run(asked) == [f"! {path} cannot be started: No such file or directory"]
