"""A simulated launch: its extension listens on a real socket, and its agent is a fake."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.agent import RequestKind, Snapshot, WorkerState
from plaunch.events import Event, EventSource
from plaunch.plugin import PluginContext
from plaunch_control.plugin import ControlExtension

from helpers.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

LONG = 30.0  # seconds; longer than anything here takes


class Control:
    """A fake control that records requests."""

    def __init__(self) -> None:
        self.asked = []
        self.events = []
        self.listeners = {}  # of broadcasts, by name
        self.called = []  # broadcasts
        self.looks = 0  # for events
        self.shown = []  # to other nodes
        self.now = Snapshot(
            WorkerState.HEALTHY, 0, 0, (4, 5), {4: 70, 5: 71}, stdouts={0: "out", 1: ""}
        )

    def set(self, **changes) -> None:
        """Change the snapshot."""
        self.now = replace(self.now, **changes)

    def tell(self, name: str, **metadata) -> None:
        """Add an event of the launch."""
        self.events.append(
            Event(name=f"plaunch.{name}", source=EventSource.AGENT, metadata=metadata)
        )

    def snapshot(self):
        return self.now

    def held(self):
        return {}

    def request(self, kind, reason):
        self.asked.append((RequestKind(kind), reason))

    def signal_workers(self, signum, ranks=None, reason=""):
        self.asked.append((signal.Signals(signum), [*ranks], reason))

    def listen(self, name, listener):
        self.listeners[name] = listener

    def broadcast(self, name, text):
        self.called.append((name, text))

    def publish(self, name, text):
        self.shown.append((name, text))

    def published(self, name, timeout=1.0, *, all_nodes=False):
        return None

    def take_events(self):
        self.looks += 1
        taken, self.events = self.events, []
        return taken


class PretendedLaunch:
    """Listens inside a `with` block."""

    def __init__(self, runtime_dir: Path, monkeypatch, run_id="job") -> None:
        monkeypatch.setenv("PLAUNCH_RUNTIME_DIR", str(runtime_dir))
        self.folder = runtime_dir
        self.control = Control()
        self.extension = ControlExtension(PluginContext(run_id, "role", "host"))

    def __enter__(self):
        before = set(self._names())
        self.extension.start(self.control)
        wait_until(lambda: len(set(self._names()) - before) == 1, "a socket")
        (name,) = set(self._names()) - before
        self.path = str(self.folder / name)
        return self

    def __exit__(self, *_):
        self.extension.stop(None)

    def _names(self):
        names = os.listdir(self.folder) if self.folder.exists() else []
        return [name for name in names if not name.startswith(".")]  # it is not ready yet

    def connect(self) -> socket.socket:
        """A connection for arbitrary bytes."""
        asking = socket.socket(socket.AF_UNIX)
        asking.settimeout(LONG)
        asking.connect(self.path)
        return asking

    def send(self, data: bytes) -> bytes:
        """Send bytes, and return the whole answer."""
        with self.connect() as asking:
            asking.sendall(data)
            asking.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := asking.recv(1 << 16):
                answer += piece
            return answer
