"""The parts of a bundle."""

from __future__ import annotations

import contextlib
import os
import time

import pytest
from plaunch.process import ProcessFailure
from plaunch_logs_default import DefaultLogsSpecs
from plaunch_report.failure_bundle.gathering import File, MissingError, gather
from plaunch_report.failure_bundle.logs import AttemptFiles, find_folders, read_last_lines
from plaunch_report.failure_bundle.oom_kills import JobProcesses
from plaunch_report.failure_bundle.system import find_kernel_lines, find_versions, select_lines


@pytest.mark.parametrize(
    ("text", "lines", "most", "expected"),
    [
        (b"", 2, 100, b""),
        (b"a\nb", 2, 100, b"a\nb"),
        (b"a\nb\nc\n", 2, 100, b"b\nc\n"),
        (b"a\nb\nc", 2, 100, b"b\nc"),
        (b"\n\n\n", 2, 100, b"\n\n"),
        (b"x" * 200_000 + b"\nb\nc\n", 2, 1 << 20, b"b\nc\n"),
        (b"a\n" + b"x" * 200_000 + b"\n", 2, 150_000, b"x" * 149_999 + b"\n"),
        (b"cut off\nwhole\n", 5, 9, b"whole\n"),
        (b"cut off\nwhole", 5, 9, b"whole"),
        (b"0123456789\n" * 50_000, 30_000, 1 << 20, b"0123456789\n" * 30_000),
    ],
)
def test_last_lines(tmp_path, text, lines, most, expected):
    path = tmp_path / "log"
    path.write_bytes(text)
    data, note = read_last_lines(str(path), lines, most)
    assert data == expected
    left_out = len(text) - len(expected)
    assert note == (f"the end; {left_out} bytes before it are left out" if left_out else "")


@pytest.mark.parametrize(
    ("files", "lines", "most", "expected"),
    [
        ([b"c\nd\n", b"a\nb\n"], 3, 100, b"b\nc\nd\n"),
        ([b"c\nd\n", b"a\nb\n"], 2, 100, b"c\nd\n"),
        ([b"d\n", b"c\n", b"a\nb\n"], 3, 100, b"b\nc\nd\n"),
        ([b"", b"a\nb\n"], 1, 100, b"b\n"),
        # a line that goes across
        ([b"b\nc\n", b"0\na-"], 2, 100, b"a-b\nc\n"),
        ([b"c\n", b"cut off\nb\n"], 5, 8, b"b\nc\n"),
    ],
)
def test_a_rotated_log_continues_in_older_files(tmp_path, files, lines, most, expected):
    for number, text in enumerate(files):
        (tmp_path / (f"log.{number}" if number else "log")).write_bytes(text)
    data, note = read_last_lines(str(tmp_path / "log"), lines, most)
    assert data == expected
    left_out = sum(map(len, files)) - len(expected)
    assert note == (f"the end; {left_out} bytes before it are left out" if left_out else "")


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("pipe", "link", "absent"):
        with pytest.raises(OSError, match=r"regular|symbolic|No such"):
            read_last_lines(str(tmp_path / name), 5, 100)


def fail(error):
    raise error


def test_parts_are_independent(gate):
    parts = {
        "slow": gate.wait,
        "broken": lambda: fail(ValueError("odd")),
        "none": lambda: fail(MissingError("there is none")),
        "good": lambda: [File("good.txt", b"yes")],
    }
    files, missing, late = gather(parts, time.monotonic() + 0.3)
    assert [file.name for file in files] == ["good.txt"]
    assert missing == {
        "slow": "not finished within 0.3 s",
        "broken": "ValueError: odd",
        "none": "there is none",
    }
    assert late == ["slow"]


KERNEL = """\
6,1,1000000,-;usb 1-1: new device
3,7,500000,-;Out of memory: Killed process 4242 (python)
4,2,2000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus
 SUBSYSTEM=pci
6,3,3500000,-;python[4242]: segfault at 0 ip 00 sp 00 error 4
6,4,4000000,-;python[42420]: segfault at 0 ip 00 sp 00 error 4
3,5,5000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=4242
3,5,5000000,-;oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/another/job,task=python,pid=9
6,6,6000000,-;task pid 4242 did something
"""


def test_lines_of_the_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(JobProcesses, "here", lambda pids: JobProcesses(pids, "/this/job"))
    # A device gives one record at a time, which a pipe does as long as somebody writes so.
    log = str(tmp_path / "kmsg")
    os.mkfifo(log)
    keep = os.open(log, os.O_RDWR)
    records = KERNEL.replace("\n SUBSYSTEM", "\0 SUBSYSTEM").splitlines(keepends=True)
    try:
        found = []
        for record in records:
            os.write(keep, record.replace("\0", "\n").encode())
            with contextlib.suppress(MissingError):
                found += find_kernel_lines({4242}, 3.0, log)
    finally:
        os.close(keep)
    lines = [file.data.decode().splitlines()[1] for file in found]
    assert lines == [
        "[2.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus",
        "[3.500000] python[4242]: segfault at 0 ip 00 sp 00 error 4",
        "[5.000000] oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=4242",
        "[6.000000] task pid 4242 did something",
    ]
    assert found[0].data.startswith(b"the launch began at about 3 s of the kernel's clock")


def test_lines_from_before_the_launch_are_about_other_jobs():
    """The kernel's clock may be behind, by more the longer the machine has been up."""
    lines = [f"[{at:>12.6f}] Out of memory: Killed process 4242" for at in (97.0, 99.0, 5e6)]
    assert select_lines(lines, {4242}, 100.0) == lines[1:]
    assert select_lines(lines, {4242}, 5e6 + 99.0) == lines[2:]
    assert select_lines(lines, {4242}, 5e6 + 101.0) == []
    assert select_lines(["Out of memory"], {4242}, 5e6) == ["Out of memory"], "no times at all"


def test_a_kernel_log_without_such_lines(tmp_path):
    (tmp_path / "kmsg").touch()
    with pytest.raises(MissingError, match="has no line about these processes"):
        list(find_kernel_lines({4242}, 3.0, str(tmp_path / "kmsg")))


def test_what_is_left_out_of_the_kernel_log_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(JobProcesses, "here", lambda pids: JobProcesses(pids, "/this/job"))
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    keep = os.open(log, os.O_RDWR)
    os.write(keep, b"3,5,5000000,-;oom-kill:task_memcg=/another/job,task=python,pid=9\n")
    with pytest.raises(MissingError, match=r"has no line .*whose lines are left out: 1$"):
        list(find_kernel_lines({4242}, 3.0, str(log)))
    os.close(keep)


def test_only_whole_numbers_are_processes():
    assert select_lines(["pid 12", "pid 1", "process 1 x", "a[1]: b", "took 1 s"], {1}, 0) == [
        "pid 1", "process 1 x", "a[1]: b",
    ]  # fmt: skip


def test_a_kernel_log_without_permission(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingError, match=r"absent cannot be read \(No such file .*\), and dmesg cannot"
    ):
        list(find_kernel_lines((), 0.0, str(tmp_path / "absent")))


def test_versions(tmp_path):
    for name in ("torch-2.3.0.dist-info", "old_one-1.0-py3.11.egg-info", "torch", "x.py"):
        (tmp_path / name).mkdir()
    (file,) = find_versions([str(tmp_path), str(tmp_path / "absent")])
    lines = file.data.decode().splitlines()
    assert lines[0].startswith("plaunch ")
    assert lines[1].startswith("Python 3.")
    assert lines[lines.index("") + 1 :] == ["old_one 1.0", "torch 2.3.0"]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_are_those_of_the_last_start_of_an_attempt(tmp_path):
    for folder, text in (("attempt_1", "old"), ("attempt_1.10", "new"), ("attempt_1.9", "old")):
        write(tmp_path / folder / "0" / "stdout.log", text)
        write(tmp_path / folder / "3" / "stderr.log", text)
        write(tmp_path / folder / "3" / "error.json", text)
    (tmp_path / "attempt_1.10" / "3" / "stdout.log").symlink_to("/etc/passwd")
    files = AttemptFiles(str(tmp_path), 1, {0: 8, 3: 11})
    found = {file.name: (file.data, file.note) for file in files.logs({})}
    assert found == {
        "logs/rank-8-stdout.log": (b"new", ""),
        "logs/rank-11-stderr.log": (b"new", ""),
        "logs/rank-11-stdout.log": (b"", "cannot be read: Too many levels of symbolic links"),
    }
    (error_file,) = files.error_files({})
    assert (error_file.name, error_file.data) == ("error-files/rank-11.json", b"new")
    (error_file,) = AttemptFiles(str(tmp_path), 1, {}, 9).error_files({})
    assert error_file.data == b"old"
    for of_none in (AttemptFiles(str(tmp_path), 2, {}), AttemptFiles("", 0, {})):
        with pytest.raises(MissingError, match="--redirects"):
            list(of_none.logs({}))
        with pytest.raises(MissingError, match="no worker wrote one"):
            list(of_none.error_files({}))


def test_files_of_another_logs_spec(tmp_path):
    log = tmp_path / "node 7\n.txt"
    log.write_text("what it said\n")
    failure = ProcessFailure(0, 7, 1, "", log_files=[str(log), str(tmp_path / "absent")])
    (file,) = AttemptFiles("", 0, {}).logs({5: failure})
    assert (file.name, file.data) == ("logs/rank-5-node_7_.txt", b"what it said\n")


def test_a_large_error_file_is_cut(tmp_path):
    write(tmp_path / "attempt_0" / "0" / "error.json", "x" * ((1 << 20) + 1))
    (file,) = AttemptFiles(str(tmp_path), 0, {0: 0}).error_files({})
    assert (len(file.data), file.note) == (1 << 20, "the first 1048576 bytes")


def test_stacks_are_those_of_the_attempt(tmp_path):
    for folder in ("attempt_1-1-failure", "attempt_1-2-sigkill", "attempt_10-1-failure"):
        write(tmp_path / "stacks" / folder / "rank_3.txt", folder)
    files = AttemptFiles(str(tmp_path), 1, {}).stacks()
    assert {file.name: file.data for file in files} == {
        "stacks/attempt_1-1-failure/rank_3.txt": b"attempt_1-1-failure",
        "stacks/attempt_1-2-sigkill/rank_3.txt": b"attempt_1-2-sigkill",
    }
    for of_none in (AttemptFiles(str(tmp_path), 2, {}), AttemptFiles("", 1, {})):
        with pytest.raises(MissingError, match="--stacks-on-failure"):
            list(of_none.stacks())


def test_folders_of_logs_specs(tmp_path):
    specs = DefaultLogsSpecs(log_dir=str(tmp_path))
    run, kept = find_folders(specs, "job")
    assert run == kept == specs.create_run_dir("job")
    temporary = DefaultLogsSpecs()
    assert find_folders(temporary, "job") == ("", "")
    temporary.reify({0: {"TORCHELASTIC_RUN_ID": "job"}})
    assert find_folders(temporary, "job") == (temporary.temporary_dir, "")
    temporary.close(succeeded=False)
    assert find_folders(temporary, "job") == find_folders(None, "job") == ("", "")
    assert find_folders(DefaultLogsSpecs(log_dir=os.devnull), "job") == ("", "")
