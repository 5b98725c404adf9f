from __future__ import annotations

import os
import sys

import pytest
from plaunch.process import Std

if sys.version_info < (3, 14):
    zstd = pytest.importorskip("backports.zstd")
else:
    from compression import zstd

from plaunch_example_plugins.compressed import ZstdLogsSpecs, ZstdSink


def envs():
    return {rank: {"TORCHELASTIC_RUN_ID": "job"} for rank in range(2)}


def test_files_are_compressed_and_read_as_what_was_written(tmp_path):
    specs = ZstdLogsSpecs(str(tmp_path), Std.ALL)
    dest = specs.reify(envs())
    assert dest.stdouts[1].endswith("/1/stdout.log.zst")
    sink = specs.open_sink(1, "stdout")
    for _ in range(1000):
        sink.write(b"the same line\n")
    sink.close()
    with open(dest.stdouts[1], "rb") as file:
        compressed = file.read()
    assert zstd.decompress(compressed) == b"the same line\n" * 1000
    assert len(compressed) < 200


def test_a_file_can_be_read_before_its_end(tmp_path):
    now = [0.0]
    sink = ZstdSink(str(tmp_path / "log.zst"), clock=lambda: now[0])
    sink.write(b"one\n")
    now[0] = 1.0
    sink.write(b"two\n")
    decompressor = zstd.ZstdDecompressor()
    assert decompressor.decompress((tmp_path / "log.zst").read_bytes()) == b"one\ntwo\n"
    sink.close()


@pytest.mark.parametrize("log_dir", [None, os.devnull])
def test_what_goes_to_the_console_is_not_compressed(log_dir):
    specs = ZstdLogsSpecs(log_dir)
    specs.reify(envs())
    assert specs.open_sink(0, "stdout") is None
    specs.close(True)


def test_the_plan_names_the_files(tmp_path):
    files = ZstdLogsSpecs(str(tmp_path), Std.OUT).planned("job", 0)
    assert files["stdout"].endswith("/0/stdout.log.zst")
    assert files["error_file"].endswith("/0/error.json")
