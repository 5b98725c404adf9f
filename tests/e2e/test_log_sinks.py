"""Logs specs with sinks, and files that rotate, in real launches."""

from __future__ import annotations

import zipfile

import pytest

PLUGIN = """\
import glob, os, threading
import plaunch
from plaunch_logs_default import DefaultLogsSpecs

class Sink:
    def __init__(self, path):
        self._file = open(path, "wb", 0)
    def write(self, data):
        self._file.write(data.upper())
    def close(self):
        self._file.close()

class Raising(Sink):
    def write(self, data):
        raise ConnectionError("the collector is gone")

class Hanging(Sink):
    def write(self, data):
        threading.Event().wait()

class Specs(DefaultLogsSpecs):
    make = Sink
    def open_sink(self, local_rank, stream):
        return self.make(f"{stream}.{local_rank}")

class Raises(Specs):
    make = Raising

class Hangs(Specs):
    make = Hanging

class Refuses(Specs):
    def make(self, path):
        raise RuntimeError("no address was given")

class Finishes(DefaultLogsSpecs):
    def close(self, succeeded):
        for path in glob.glob(self.root_log_dir + "/*/*/*/*.log"):
            os.rename(path, path + ".finished")

@plaunch.hookimpl
def plaunch_logs_specs():
    return {one.__name__.lower(): one for one in (Specs, Raises, Hangs, Refuses, Finishes)}
"""
WORKER = """\
import os, sys
rank = int(os.environ["RANK"])
print("out of", rank)
print("the reason of", rank, file=sys.stderr)
sys.exit(7 if rank == 1 and "fail" in sys.argv else 0)
"""


@pytest.fixture
def launch(plaunch):
    """Run two workers with one of the logs specs."""
    plaunch.write("sinks.py", PLUGIN)
    plaunch.environ["PYTHONPATH"] = str(plaunch.folder)
    script = plaunch.write("worker.py", WORKER)

    def launch(specs, *words, script=script, ending=""):
        chosen = ["-p", "sinks", f"--logs-specs={specs}"] if specs else []
        return plaunch.run(
            *chosen, "--nproc-per-node=2", "--log-dir=logs", *words, script, *ending.split()
        )

    return launch


@pytest.mark.parametrize("words", [["--redirects=3"], ["--tee=3"], []])
def test_sinks_get_what_workers_write(launch, plaunch, words):
    done = launch("specs", *words)
    assert done.returncode == 0
    for rank in range(2):
        assert (plaunch.folder / f"stdout.{rank}").read_text() == f"OUT OF {rank}\n"
        assert (plaunch.folder / f"stderr.{rank}").read_text() == f"THE REASON OF {rank}\n"
    assert list(plaunch.folder.glob("logs/**/std*.log")) == []
    shown = {"--tee=3": "[default0]:out of 0\n", "--redirects=3": ""}
    assert shown.get("".join(words), "out of 0\n") in done.stdout
    assert bool(done.stdout) == (words != ["--redirects=3"])


@pytest.mark.parametrize(
    ("specs", "sink", "said"),
    [
        (
            "raises",
            "Raising",
            "cannot be written to any more (ConnectionError: the collector is gone)",
        ),
        ("hangs", "Hanging", "does not take the rest of its output: 16 bytes"),
    ],
)
def test_a_failing_sink_is_named_and_the_report_stays_correct(launch, specs, sink, said):
    done = launch(specs, "--redirects=3", ending="fail")
    assert done.returncode == 7
    assert f"the log sink {sink} of stderr of local rank 1 " in done.stderr
    assert said in done.stderr
    assert "lacks lines of the workers' output: 1" in done.stderr
    assert "the reason of 1" in done.stderr  # its last lines


def test_a_sink_that_cannot_be_opened_ends_the_launch(launch):
    done = launch("refuses")
    assert done.returncode not in (0, 7)
    assert (
        "the logs spec cannot open a sink for stdout of local rank 0: RuntimeError: no address was "
        "given"
    ) in done.stderr


def test_logs_of_a_failed_job_may_be_finished(launch, plaunch):
    done = launch("finishes", "--redirects=3", ending="fail")
    assert done.returncode == 7
    assert "the reason of 1" in done.stderr
    assert len(list(plaunch.folder.glob("logs/*/*/*/*.finished"))) == 4
    (bundle,) = plaunch.folder.glob("logs/*/failure-0.zip")
    with zipfile.ZipFile(bundle) as archive:
        assert b"the reason of 1" in archive.read("report.txt")
        assert b"a logs spec may " in archive.read("contents.txt")


TALKER = """\
import os, sys
for number in range(6000):
    os.write(1, b"line %05d\\n" % number)
sys.exit(7)
"""


@pytest.mark.parametrize("words", [["--redirects=1"], ["--tee=1"]])
def test_files_rotate_and_the_bundle_reads_across(launch, plaunch, words):
    script = plaunch.write("talker.py", TALKER)
    done = launch("", *words, "--log-rotate=65535B:1", script=script)
    assert done.returncode == 2
    assert "a size below 64K" in done.stderr
    alone = "--nproc-per-node=1"  # another worker would be stopped before it has written everything
    done = launch("", *words, alone, "--log-rotate=64K:1", script=script)
    assert done.returncode == 7
    (folder,) = plaunch.folder.glob("logs/*/attempt_0/0")
    newest, older = ((folder / name).read_bytes() for name in ("stdout.log", "stdout.log.1"))
    whole = b"".join(b"line %05d\n" % number for number in range(6000))
    assert older + newest == whole  # 66,000 bytes
    assert 65536 - 11 < len(older) <= 65536
    (bundle,) = plaunch.folder.glob("logs/*/failure-0.zip")
    with zipfile.ZipFile(bundle) as archive:
        assert archive.read("logs/rank-0-stdout.log").splitlines() == whole.splitlines()[-1000:]
