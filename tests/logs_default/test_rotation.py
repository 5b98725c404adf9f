"""`--log-rotate`: the option, the files, the logs spec."""

from __future__ import annotations

import os
import resource

import pytest
from plaunch import LaunchConfig
from plaunch.errors import LogDirectoryError, UsageError
from plaunch.plugin import PluginContext
from plaunch.process import Std
from plaunch_logs_default import DefaultLogsSpecs
from plaunch_logs_default.options import read_rotation
from plaunch_logs_default.plugin import plaunch_extensions
from plaunch_logs_default.rotating_file import RotatingFile

from helpers.limits import limited
from helpers.logs_specs import NoFiles

ENVS = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0"}


# --- the option -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("100MB:5", (100 << 20, 5)),
        ("1g:1000", (1 << 30, 1000)),
        ("64KiB:1", (64 << 10, 1)),
        ("65536 : 2", (64 << 10, 2)),
    ],
)
def test_valid_rotations(text, meaning):
    assert read_rotation(text) == meaning


@pytest.mark.parametrize(
    "text",
    ["", "5", "100MB", "100MB:", ":5", "100MB:0", "1.5G:3", "1X:3", "-1M:3", "1M:1001", "MB:1"],
)
def test_malformed_rotations(text):
    with pytest.raises(ValueError, match=r"is not SIZE:FILES, such as 100MB:5 or 1G:3"):
        read_rotation(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("63K:3", "a size below 64K, the minimum"),
        ("0M:3", "a size below 64K, the minimum"),
        ("9999999T:3", "a size that no file can have"),
    ],
)
def test_sizes_out_of_range(text, problem):
    with pytest.raises(ValueError, match=problem):
        read_rotation(text)


# --- the files ------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stdout.log"


def files(path):
    """The contents of the files, oldest first."""
    found = path.parent.iterdir()
    numbers = {one: 0 if one == path else int(one.suffix[1:]) for one in found}
    return [one.read_bytes() for one in sorted(numbers, key=numbers.get, reverse=True)]


@pytest.mark.parametrize(
    ("pieces", "kept", "left"),
    [
        ([b"one\n", b"two\n"], 2, [b"one\ntwo\n"]),
        ([b"one\n", b"two\n", b"3\n"], 2, [b"one\ntwo\n", b"3\n"]),
        ([b"one\ntwo\nthree\nfour\n"], 5, [b"one\ntwo\n", b"three\n", b"four\n"]),
        # limited number of older files
        ([b"one\ntwo\nthree\nfour\n"], 1, [b"three\n", b"four\n"]),
        # a line of the size of a file, and a longer one
        ([b"1234567\n" * 2], 5, [b"1234567\n", b"1234567\n"]),
        ([b"a\n", b"0123456789abcdef-\n"], 5, [b"a\n", b"01234567", b"89abcdef", b"-\n"]),
        # a line in pieces
        ([b"one\n", b"tw", b"o\n3"], 5, [b"one\ntwo\n", b"3"]),
    ],
)
def test_files_respect_the_size_and_end_with_whole_lines(path, pieces, kept, left):
    file = RotatingFile(str(path), 8, kept)
    for piece in pieces:
        file.write(piece)
    file.close()
    file.close()
    assert files(path) == left


def test_an_existing_file_is_appended_to(path):
    path.write_bytes(b"before\n")
    file = RotatingFile(str(path), 8, 2)
    file.write(b"1\n")
    file.close()
    assert files(path) == [b"before\n", b"1\n"]


def test_deleted_older_files_are_no_error(path):
    file = RotatingFile(str(path), 4, 3)
    file.write(b"one\ntwo\n333\n")
    path.with_name("stdout.log.1").unlink()
    path.unlink()
    file.write(b"444\n")
    file.close()
    assert [one.name for one in sorted(path.parent.iterdir())] == ["stdout.log", "stdout.log.3"]


def test_a_partial_write_is_removed(path):
    file = RotatingFile(str(path), 100, 2)
    with limited(resource.RLIMIT_FSIZE, 3), pytest.raises(OSError, match="too large"):
        file.write(b"lost\n")
    file.write(b"found\n")
    file.close()
    assert path.read_bytes() == b"found\n"


def test_opening_a_file_is_retried(path):
    file = RotatingFile(str(path), 4, 2)
    file.write(b"one\n")
    with limited(resource.RLIMIT_NOFILE, 0), pytest.raises(OSError, match="open files"):
        file.write(b"two\n")
    file.write(b"333\n")
    file.close()
    assert files(path) == [b"one\n", b"333\n"]


# --- the logs spec --------------------------------------------------------------------------------


def test_only_streams_with_files_have_sinks(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), {0: Std.OUT}, {1: Std.ERR})
    assert specs.open_sink(0, "stdout") is None
    assert specs.rotate(1 << 20, 2)
    dest = specs.reify({0: dict(ENVS), 1: dict(ENVS)})
    keys = [(rank, stream) for rank in (0, 1) for stream in ("stdout", "stderr")]
    opened = {key: specs.open_sink(*key) for key in keys}
    assert [key for key, sink in opened.items() if sink] == [(0, "stdout"), (1, "stderr")]
    assert os.path.exists(dest.stdouts[0])
    assert os.path.exists(dest.stderrs[1])
    for sink in filter(None, opened.values()):
        sink.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), Std.OUT)
    specs.rotate(1 << 20, 2)
    dest = specs.reify({0: dict(ENVS)})
    os.mkdir(dest.stdouts[0])
    with pytest.raises(LogDirectoryError, match="stdout of local rank 0: Is a directory"):
        specs.open_sink(0, "stdout")


def context(specs, **settings):
    known = {**LaunchConfig(1, 1, 1).settings(), "logs_specs": specs, **settings}
    return PluginContext("job", "default", "host", settings=known, options={"log_rotate": (1, 1)})


def test_the_option_reaches_the_logs_spec(tmp_path, caplog):
    specs = DefaultLogsSpecs(str(tmp_path), Std.OUT)
    plaunch_extensions(context(specs))
    dest = specs.reify({0: dict(ENVS)})
    specs.open_sink(0, "stdout").close()
    assert os.path.exists(dest.stdouts[0])
    assert caplog.messages == []


@pytest.mark.parametrize(
    "specs",
    [
        None,
        DefaultLogsSpecs("logs"),
        DefaultLogsSpecs(os.devnull, Std.ALL),
        DefaultLogsSpecs("logs", {0: Std.NONE}),
    ],
)
def test_rotation_without_files_warns(specs, caplog):
    plaunch_extensions(context(specs))
    (message,) = caplog.messages
    assert message.startswith("--log-rotate has no effect: no stream of a worker goes to a file")


def test_another_logs_spec_cannot_rotate():
    with pytest.raises(UsageError, match="NoFiles \\(--logs-specs\\) has its own"):
        plaunch_extensions(context(NoFiles()))


def test_daemons_exclude_rotation(tmp_path):
    with pytest.raises(UsageError, match="--log-rotate and --keep-daemons exclude each other"):
        plaunch_extensions(context(DefaultLogsSpecs(str(tmp_path), Std.OUT), keep_daemons=True))
