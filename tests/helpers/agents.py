"""Agents on a rendezvous that a test controls, with fake or real workers."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from plaunch.agent import (
    AgentServices,
    LocalElasticAgent,
    RunResult,
    SimpleElasticAgent,
    WorkerSpec,
    WorkerState,
    notifications,
)
from plaunch.process.streams import OutputCounts
from plaunch_logs_default import DefaultLogsSpecs

from helpers.calls import meanwhile
from helpers.programs import run_all
from helpers.waiting import BOUND, wait_for_files

SUCCEEDED = RunResult(WorkerState.SUCCEEDED, return_values={0: "done"})


class RecordedNotifications(list):
    """The notifications of an agent."""

    def of(self, kind):
        """Return the notifications of one kind."""
        return [notification for notification in self if isinstance(notification, kind)]


class PretendAgent(SimpleElasticAgent):
    """An agent with fake workers: each start has a script, the results of successive polls.

    An item of a script is a result, or a callable that runs in between; an
    exception as the first item is raised by the start.
    """

    def __init__(
        self,
        handler,
        *scripts,
        max_restarts=None,
        nproc=1,
        policy=None,
        exit_barrier_timeout=300,
        watchdog=None,
        health_checks=None,
        wait_reporter=None,
        **spec,
    ):
        self.notifications = RecordedNotifications()
        if max_restarts is None:
            max_restarts = getattr(handler, "max_restarts", 3)
        policies = {} if policy is None else {"signal_policy": policy}
        if wait_reporter is not None:
            policies["wait_reporter"] = wait_reporter
        super().__init__(
            WorkerSpec(
                role="trainer",
                local_world_size=nproc,
                rdzv_handler=handler,
                entrypoint="pretend",
                max_restarts=max_restarts,
                monitor_interval=0.001,
                **spec,
            ),
            exit_barrier_timeout,
            services=AgentServices(
                **policies,
                notify=self.notifications.append,
                watchdog=watchdog,
                health_checks=health_checks,
            ),
        )
        self.scripts = [list(script) for script in scripts]
        self.current = []
        self.calls = []
        self.signals = []
        self._workers.signal = self.signals.append
        self.on_stop = lambda: None

    def _start_workers(self, worker_group):
        self.calls.append("start")
        self.current = self.scripts.pop(0)
        if self.current and isinstance(self.current[0], Exception):
            raise self.current[0]
        return {worker.local_rank: 1000 + worker.local_rank for worker in worker_group.workers}

    def _stop_workers(self, worker_group):
        self.calls.append("stop")
        self.on_stop()

    def _monitor_workers(self, worker_group):
        if self.current:
            item = self.current.pop(0)
            if isinstance(item, RunResult):
                return item
            item()
        return RunResult(WorkerState.HEALTHY)

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=None):
        self.calls.append(f"shutdown {death_sig.name}")

    def fails(self, kind, match=None):
        """Run until the expected error, verify the shutdown, and return the error."""
        with pytest.raises(kind, match=match) as caught:
            self.run()
        assert self.calls == ["start", "stop", "shutdown SIGTERM"]
        return caught.value

    def started(self):
        """Return the attempt and the round of every start."""
        groups = [m.group for m in self.notifications.of(notifications.WorkersStarted)]
        return [(group.attempt, group.round) for group in groups]


class Stalled:
    """Streams whose console takes nothing until `escalate`, or until they have waited."""

    def __init__(self):
        self.waits = []  # timeouts
        self.is_waiting = threading.Event()
        self._is_over = threading.Event()

    def counts(self):
        return OutputCounts(9, 4, 0)

    def show_rest(self, timeout):
        self.waits.append(timeout)
        self.is_waiting.set()
        assert timeout < math.inf or self._is_over.wait(60)

    def escalate(self):
        self._is_over.set()


def with_console(agent, streams=None):
    """Give an agent streams with a slow console, and return them."""
    streams = streams or Stalled()
    agent._workers.streams = lambda: streams
    return streams


def and_then(thing, name, act):
    """Call a function after each call of this method."""
    method = getattr(thing, name)

    def call(*args, **options):
        result = method(*args, **options)
        act()
        return result

    setattr(thing, name, call)


# The beginning of a worker's script. `up` makes a file `<round>.<attempt>.<rank>`.
UP = """\
import json, os, pathlib, signal, subprocess, sys, time
where = pathlib.Path(sys.argv[1])
round_, attempt, rank = (
    int(os.environ[name]) for name in ("PLAUNCH_ROUND", "TORCHELASTIC_RESTART_COUNT", "LOCAL_RANK")
)
def up():
    path = where / f"{round_}.{attempt}.{os.environ['RANK']}"
    new = where / f"{path.name}.new"
    new.write_text(json.dumps({"pid": os.getpid(), "world": int(os.environ["WORLD_SIZE"])}))
    new.rename(path)
def wait_for(name):
    while not (where / name).exists(): time.sleep(0.005)
"""
WAIT = UP + "up()\ntime.sleep(300)\n"
WAIT_IN_ROUND_0 = UP + "up()\nif round_ == 0: time.sleep(300)\n"
# SIGTERM starts a save, which lasts until the file `enough` exists.
SAVING = UP + (
    "def save(*_):\n"
    "    (where / f'asked.{rank}').touch()\n"
    "    wait_for('enough')\n"
    "    (where / f'saved.{rank}').touch()\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "up()\n"
    "while True: time.sleep(0.01)\n"  # a signal just before a long sleep is handled late
)


class Node:
    """An agent whose workers run a Python script; its notifications are recorded.

    Args:
        folder: the argument of the script, for its files.
        handler: the rendezvous.
    """

    def __init__(self, folder, handler):
        self.folder = folder
        self.handler = handler
        self.notifications = RecordedNotifications()

    def agent(self, script, nproc=2, *, max_restarts=None, kind=LocalElasticAgent, **options):
        """Create the agent with these options."""
        if max_restarts is None:
            max_restarts = getattr(self.handler, "max_restarts", 0)
        spec = WorkerSpec(
            role="trainer",
            local_world_size=nproc,
            rdzv_handler=self.handler,
            entrypoint=sys.executable,
            args=("-u", "-c", script, str(self.folder)),
            max_restarts=max_restarts,
            monitor_interval=options.pop("monitor_interval", 0.1),
        )
        logs = DefaultLogsSpecs(log_dir=str(self.folder / "logs"))
        names = [field.name for field in dataclasses.fields(AgentServices)]
        services = {name: options.pop(name) for name in names if name in options}
        return kind(
            spec,
            logs,
            services=AgentServices(notify=self.notifications.append, **services),
            **{"shutdown_timeout": 30, **options},
        )

    def run(self, script, act=lambda: None, nproc=2, *, after=(), **options):
        """Run it to its end; call `act` on another thread once the files `after` exist."""
        agent = self.agent(script, nproc, **options)

        def act_then():
            self.wait_for(*after)
            act()

        with meanwhile(act_then):
            return agent.run()

    def failing(self, error, *names):
        """Create a class of agents that fail once, when these files exist."""
        node, errors = self, [error]

        class Failing(LocalElasticAgent):
            def _monitor_workers(self, worker_group):
                if errors and all(map(node.has, names)):
                    raise errors.pop()
                return super()._monitor_workers(worker_group)

        return Failing

    def wait_for(self, *names):
        """Wait for files."""
        wait_for_files(*(self.folder / name for name in names))

    def workers(self, *names):
        """Wait until workers are running; return their output."""
        self.wait_for(*names)
        return [json.loads((self.folder / name).read_text()) for name in names]

    def has(self, name):
        """Whether a file exists."""
        return (self.folder / name).exists()

    def touch(self, name):
        """Create a file."""
        (self.folder / name).touch()

    def starts(self):
        """Return the round, the attempt and the rank of each started worker."""
        return sorted(path.name for path in self.folder.glob("?.?.?"))

    def exits(self):
        """Return the exits of workers."""
        return [m.exit for m in self.notifications.of(notifications.WorkerExited)]


# One node of a job over a real store; its argument has the settings of rendezvous and spec.
_NODE = """\
import json, pathlib, sys, threading, time
from plaunch.agent import LocalElasticAgent, RequestKind, WorkerSpec
from plaunch.errors import PlaunchError, SignalException
from plaunch.rendezvous import RendezvousParameters
from plaunch_torchrun.elastic.rendezvous import get_rendezvous_handler
given = json.loads(sys.argv[1])
handler = get_rendezvous_handler(RendezvousParameters(**given["rendezvous"]))
spec = WorkerSpec(entrypoint=sys.executable, rdzv_handler=handler, **given["spec"])
agent = LocalElasticAgent(spec, exit_barrier_timeout=30)
"""


def run_nodes(program, *nodes, with_torch=None):
    """Run several nodes to their end, each with an agent in its own process.

    Args:
        program: the code that each node runs with its `agent`.
        nodes: what is `given` to each: settings of its `rendezvous`, and of its workers (`spec`).
        with_torch: the fixture, for a rendezvous that would import torch on each node.
    """
    if with_torch is None:
        return run_all(["-c", _NODE + program, json.dumps(node)] for node in nodes)

    def run(node):
        with open(os.devnull) as nothing:
            environ = {**os.environ, "LOGLEVEL": "WARNING"}
            options = {"cwd": folder, "env": environ, "stdin": nothing, "timeout": 2 * BOUND}
            return with_torch.run("node", json.dumps(node), **options)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as at_once:
        Path(folder, "node.py").write_text(_NODE + program)
        return list(at_once.map(run, nodes))
