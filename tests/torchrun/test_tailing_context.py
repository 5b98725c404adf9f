"""torchrun's `PContext` shows the files to which workers write teed streams."""

from __future__ import annotations

import os
import signal
import threading

import plaunch.process
import pytest
from plaunch.process import RunProcsResult, start_processes
from plaunch_torchrun.elastic.multiprocessing import PContext

from helpers.faults import raising
from helpers.logs_specs import NoFiles
from helpers.waiting import BOUND


class ThreadContext(PContext):
    """Threads as workers; it has torchrun's four methods and nothing else."""

    closed = ()

    def _start(self):
        self.threads = [
            threading.Thread(target=self.entrypoint, args=args) for args in self.args.values()
        ]
        for thread in self.threads:
            thread.start()

    def _poll(self):
        if any(thread.is_alive() for thread in self.threads):
            return None
        self.close()
        return RunProcsResult(return_values=dict.fromkeys(self.args))

    def pids(self):
        return dict.fromkeys(self.args, os.getpid())

    def _close(self, death_sig, timeout=30):
        self.closed = death_sig, timeout
        for thread in self.threads:
            thread.join()


def make(entrypoint, args, logs_specs, **options):
    return ThreadContext("t", entrypoint, args, {rank: {} for rank in args}, logs_specs, **options)


def test_teed_files_are_shown_and_matches_collected(tmp_path, capsys):
    paths = {rank: str(tmp_path / str(rank)) for rank in (0, 1)}
    spec = NoFiles(
        stdouts=paths, tee_stdouts={0: paths[0]}, filtered_stdout=str(tmp_path / "matches")
    )

    def work(rank):
        with open(paths[rank], "w") as file:
            file.write(f"hello from {rank}\nloss 0.5\n")

    context = make(work, {0: (0,), 1: (1,)}, spec, duplicate_stdout_filters=["loss"])
    context.start()
    context.wait(BOUND, period=0.001)
    assert capsys.readouterr().out == "[t0]:hello from 0\n[t0]:loss 0.5\n"
    assert (tmp_path / "matches").read_text() == "[t0]:loss 0.5\n"


def test_no_files_are_followed_when_there_are_none():
    threads = threading.active_count()
    nothing = {0: os.devnull, 1: os.devnull}
    release = threading.Event()
    spec = NoFiles(tee_stdouts=nothing, tee_stderrs=nothing)
    context = make(release.wait, {0: (), 1: ()}, spec)
    context.start()
    assert threading.active_count() == threads + 2
    release.set()
    context.close()


def test_workers_are_stopped_if_their_files_cannot_be_shown():
    class Broken(NoFiles):
        open_streams = raising(OSError("too many open files"))

    context = make(lambda: None, {0: ()}, Broken(tee_stdouts={0: "/logs/0"}))
    with pytest.raises(OSError, match="too many open files"):
        context.start()
    assert context.closed == (signal.SIGTERM, 1.0)


def test_plaunchs_contexts_are_torchruns():
    assert issubclass(PContext, plaunch.process.PContext)
    with_program = start_processes("t", "true", {0: ()})
    assert isinstance(with_program, PContext)
    with_program.close()
