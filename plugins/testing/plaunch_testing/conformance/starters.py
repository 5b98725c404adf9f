"""The conformance suite for starters of worker processes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from plaunch_testing.conformance.plugin_suite import opened, within
from plaunch_testing.conformance.started_workers import StartedWorkers
from plaunch_testing.conformance.starter_suite import WAIT_TIMEOUT, wait_until

_METHODS = ("begin", "wait", "prepare", "start", "fds", "close")
_CODES = {"success": 0, "failure": 3, "the largest": 255}
_SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGABRT)


class StarterConformance(StartedWorkers):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `plugin` returns a function that creates the starter from a context, as `plaunch_worker_starter`
    does. If `start` returns None, the suite executes the worker, as a launch does.
    """

    # --- the object -------------------------------------------------------------------------------

    def test_it_has_the_methods_of_a_starter(self) -> None:
        """It has `begin`, `wait`, `prepare`, `start`, `fds` and `close`."""
        starter = self.create()
        for method in _METHODS:
            assert callable(getattr(starter, method, None)), f"{starter!r} has no {method}"

    def test_its_description_is_one_line(self) -> None:
        """`--dry-run` shows its `str`."""
        text = str(self.create())
        assert text, "its str is empty"
        assert len(text.splitlines()) == 1, f"its str is {text!r}"

    def test_it_reports_what_took_time(self) -> None:
        """`wait` returns seconds by name, in every round."""
        starter = self.begin()
        for _ in range(2):
            found = within(WAIT_TIMEOUT, "wait()", starter.wait)
            assert isinstance(found, Mapping), f"wait() is {found!r}"
            for name, seconds in found.items():
                assert isinstance(name, str), f"{name!r} is not a str"
                assert isinstance(seconds, (int, float)), f"{name} took {seconds!r}"
                assert seconds >= 0, f"{name} took {seconds!r}"

    def test_it_starts_workers_itself(self) -> None:
        """Otherwise the suite executes them, and the other checks do not test the starter."""
        starter = self.begin("exit", "0")
        self.form(starter)
        options: dict[str, Any] = {"stdout": None, "stderr": None}
        command, env = self.command("exit", "0"), self.environment()
        worker = self.call("start()", starter.start, 0, command, env=env, **options)
        if worker is None:
            pytest.skip("it starts no worker itself")
        self._workers.append(worker)
        assert self.end(worker) == 0

    # --- its end ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("code", _CODES.values(), ids=_CODES)
    def test_its_exit_code_is_known(self, code: int) -> None:
        """`poll` returns it."""
        starter = self.begin("exit", str(code))
        self.form(starter)
        found = self.end(self.start(starter, "exit", str(code)))
        assert found == code, f"it is {found}, and not {code}"

    @pytest.mark.parametrize("signum", _SIGNALS, ids=[one.name for one in _SIGNALS])
    def test_the_signal_that_ends_it_is_known(self, signum: signal.Signals) -> None:
        """`poll` returns it as a negative number."""
        starter = self.begin("die", str(int(signum)))
        self.form(starter)
        found = self.end(self.start(starter, "die", str(int(signum))))
        assert found == -signum, f"it is {found}, and not {-signum}"

    def test_it_can_be_killed(self) -> None:
        """Its process group exists when `start` returns, and can be killed."""
        starter = self.begin("wait", "0")
        self.form(starter)
        read, write = os.pipe()
        try:
            worker = self.start(starter, "wait", str(read), pass_fds=(read,))
            os.killpg(worker.pid, signal.SIGKILL)
            assert self.end(worker) == -signal.SIGKILL
        finally:
            os.close(read)
            os.close(write)

    def test_poll_is_that_of_a_popen(self) -> None:
        """It is None while the worker runs; only `poll` reaps it, and always returns the same."""
        starter = self.begin("wait", "0")
        self.form(starter)
        read, write = os.pipe()
        try:
            worker = self.start(starter, "wait", str(read), pass_fds=(read,))
            assert worker.poll() is None, f"poll() is {worker.poll()!r} while it runs"
            assert worker.returncode is None, f"returncode is {worker.returncode!r} while it runs"
        finally:
            os.close(read)
            os.close(write)
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            found = wait_until(lambda: os.waitid(os.P_PID, worker.pid, options) is not None)
        except ChildProcessError:
            pytest.fail("something else has reaped it, so the launcher cannot know how it ended")
        assert found, "its exit was not noticed"
        assert worker.returncode is None, "returncode is set before poll() was called"
        found_codes = [worker.poll(), worker.poll(), worker.returncode]
        assert found_codes == [7, 7, 7], f"poll(), poll() and returncode are {found_codes}, not 7"
        with pytest.raises(ChildProcessError):  # it has been reaped
            os.waitpid(worker.pid, os.WNOHANG)

    # --- a launch ---------------------------------------------------------------------------------

    def test_workers_run_side_by_side_in_every_round(self) -> None:
        """Each worker has the environment of its local rank."""
        starter = self.begin()
        for number in range(2):
            envs = [self.environment(RANK=str(rank), ROUND=str(number)) for rank in range(3)]
            self.form(starter, *envs)
            pids = set()
            for rank, env in enumerate(envs):
                seen = self.shown(starter, env=env, local_rank=rank)
                pids.add(seen["pid"])
                for name in ("RANK", "ROUND"):
                    found = bytes.fromhex(seen["environment"][name.encode().hex()]).decode()
                    assert found == env[name], f"{name} of local rank {rank} is {found!r}"
            assert len(pids) == len(envs), "two workers have the same number"

    def test_a_round_may_end_before_its_workers_are_started(self) -> None:
        """Another one is prepared then, or none."""
        starter = self.begin()
        self.form(starter, self.environment(), self.environment())
        self.form(starter)
        assert self.shown(starter)["parent"] == os.getpid()
        self.form(starter, self.environment(), self.environment())
        self.close(starter)
        self.assert_gone()

    def test_it_does_without_a_command(self) -> None:
        """Function workers are started without a command."""
        starter = self.create()
        self.call("begin()", starter.begin, [], self.environment())
        within(WAIT_TIMEOUT, "wait()", starter.wait)
        self.call("prepare()", starter.prepare, {0: self.environment()})
        self.call("fds()", starter.fds)
        self.close(starter)

    def test_a_program_that_does_not_exist_is_seen(self) -> None:
        """`start` raises `FileNotFoundError` or returns None, or the worker fails."""
        command = [os.path.join(self.folder, "no-such-program")]
        starter = self.create()
        self.call("begin()", starter.begin, command, self.environment())
        self.form(starter)
        options: dict[str, Any] = {"stdout": None, "stderr": None}
        with contextlib.suppress(FileNotFoundError):
            worker: Any = self.call(
                "start()", starter.start, 0, command, env=self.environment(), **options
            )
            if worker is not None:
                self._workers.append(worker)
                assert self.end(worker) != 0, "the worker succeeds"

    def test_its_descriptors_are_open(self) -> None:
        """`fds` returns open descriptors, which a fork of the launcher closes."""
        starter = self.begin()
        self.form(starter)
        for fd in self.call("fds()", starter.fds):
            assert type(fd) is int, f"{fd!r} is not a descriptor"
            os.fstat(fd)

    # --- the end ----------------------------------------------------------------------------------

    def test_closing_it_leaves_nothing(self) -> None:
        """It leaves no process, open file or thread."""
        threads = set(threading.enumerate())
        starter = self.begin()
        self.form(starter)
        self.shown(starter)
        self.close(starter)
        self.assert_gone()
        found = opened(self.files_before)
        assert not found, f"it leaves open {found}"
        wait_until(lambda: not set(threading.enumerate()) - threads, self.seconds)
        left = sorted(one.name for one in set(threading.enumerate()) - threads)
        assert not left, f"it leaves the threads {left}"

    def test_workers_survive_its_end(self) -> None:
        """It may be closed while workers are stopping."""
        starter = self.begin("wait", "0")
        self.form(starter)
        read, write = os.pipe()
        try:
            worker = self.start(starter, "wait", str(read), pass_fds=(read,))
            self.close(starter)
            assert worker.poll() is None, f"the worker ends with {worker.poll()} when it is closed"
        finally:
            os.close(read)
            os.close(write)
        code = self.end(worker)
        assert code == 7, f"the worker ended with {code}, not with 7"

    def test_it_can_be_closed_twice(self) -> None:
        """Even before `begin`."""
        for starter in (self.create(), self.begin()):
            for _ in range(2):
                self.close(starter)
        self.assert_gone()

    def test_closing_it_ends_a_wait(self) -> None:
        """A launch that is stopped does not wait for preparations."""
        starter = self.begin()
        ended = threading.Event()

        def wait() -> None:
            with contextlib.suppress(Exception):
                starter.wait()
            ended.set()

        threading.Thread(target=wait, name="conformance-wait", daemon=True).start()
        self.close(starter)
        assert ended.wait(self.seconds), f"wait() takes more than {self.seconds:g} s after close()"
        self.assert_gone()
