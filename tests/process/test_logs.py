"""What a logs spec says, and who carries the streams then."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from plaunch.process import LogsDest, OutputCounts, find_run_dir, read_dest, start_processes

from helpers.logs_specs import NoFiles
from helpers.waiting import BOUND

NULL = os.devnull
WORDS = {0: ("-c", "echo out; echo err >&2; exit 3"), 1: ("-c", "")}


class Own:
    """A third party's streams, which keep stderr in files without a name."""

    def __init__(self, nprocs, folder):
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        self.files = [os.open(folder, flags) for _ in range(nprocs)]
        self.calls = []
        self.lines = {}

    def child_fds(self, local_rank):
        self.calls.append(f"child_fds {local_rank}")
        return None, self.files[local_rank]

    def start(self):
        self.calls.append("start")

    def is_reading(self):
        return False

    def escalate(self):
        self.calls.append("escalate")

    def finish(self):
        self.calls.append("finish")
        while self.files:
            fd = self.files.pop()
            self.lines[len(self.files)] = os.pread(fd, 100, 0).decode().splitlines()
            os.close(fd)

    def last_lines(self, local_rank):
        return tuple(self.lines.get(local_rank, ()))

    def counts(self):
        return OutputCounts()

    def last_shown(self):
        return 0.0


def test_a_logs_spec_may_bring_its_own_streams(tmp_path, capfd):
    class Carrying(NoFiles):
        def open_streams(self, dest, nprocs, **options):
            self.opened = dest, nprocs, options
            self.streams = Own(nprocs, tmp_path)
            return self.streams

    specs = Carrying(error_files={0: "", 1: ""})
    context = start_processes("t", "sh", WORDS, logs_specs=specs, duplicate_stdout_filters=["loss"])
    result = context.wait(BOUND)
    assert result.failures[0].last_lines == ["err"]
    assert capfd.readouterr() == ("out\n", "")
    assert specs.streams.calls[:3] == ["child_fds 0", "child_fds 1", "start"]
    assert "finish" in specs.streams.calls
    dest, nprocs, options = specs.opened
    assert (dest, nprocs) == (specs.reify({0: {}, 1: {}}), 2)
    assert options == {
        "prefixes": {0: "[t0]:", 1: "[t1]:"},
        "stdout_filters": ("loss",),
        "stderr_filters": (),
        "capture_stderr": True,
        "keeps_daemons": False,
        "before": None,
    }


@pytest.mark.parametrize("has_method", [True, False])
def test_it_need_not(has_method, capfd):
    """Nor has one that was written for torchrun the method."""
    specs = NoFiles(error_files={0: "", 1: ""})
    if not has_method:
        specs = SimpleNamespace(reify=specs.reify, root_log_dir=None)
    result = start_processes("t", "sh", WORDS, logs_specs=specs).wait(BOUND)
    assert result.failures[0].last_lines == ["err"]
    assert capfd.readouterr() == ("out\n", "err\n")


def test_paths_may_be_of_any_kind_and_maps_incomplete():
    third_party = SimpleNamespace(
        stdouts={0: Path("/o")},
        stderrs={0: b"/e", 1: None},
        tee_stdouts={0: Path("/o"), 1: None},
        tee_stderrs={},
        error_files={0: Path("/x"), 1: ""},
    )
    assert read_dest(third_party) == LogsDest(
        {0: "/o"}, {0: "/e", 1: ""}, {0: "/o"}, {}, {0: "/x", 1: ""}, "", ""
    )


def test_from_torchs_own_spec_a_null_device_means_nothing():
    """It tees what has no file to there; in plaunch's it means the console alone."""
    ours = LogsDest({0: "", 1: NULL}, {0: ""}, {0: NULL, 1: NULL}, {0: NULL})
    torchs = SimpleNamespace(**vars(ours))
    assert read_dest(ours) == ours
    assert read_dest(torchs) == LogsDest({0: "", 1: NULL}, {0: ""}, {1: NULL})


class Folders(NoFiles):
    """Its folders are arguments."""

    root_log_dir = temporary_dir = None

    def __init__(self, **folders):
        super().__init__()
        vars(self).update(folders)


@pytest.mark.parametrize(
    ("specs", "folder"),
    [
        (None, ""),
        (Folders(create_run_dir=lambda run_id: f"/logs/{run_id}"), "/logs/job"),
        (Folders(), ""),
        (Folders(root_log_dir="/logs"), "/logs"),
        (Folders(root_log_dir="/dev/null"), ""),
        (Folders(root_log_dir="/tmp/x", temporary_dir="/tmp/x"), ""),
    ],
)
def test_the_folder_of_a_run(specs, folder):
    assert find_run_dir(specs, "job") == folder
