"""Agents of a simulated command, and the connections through which it reaches them."""

from __future__ import annotations

import contextlib
import enum
import json
import sys
from collections import deque
from typing import TYPE_CHECKING

from plaunch import __version__
from plaunch_engines.records import VERSION, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_testing.simulation.modules import SimulatedSystem

__all__ = ["LinkFault", "SimulatedAgent"]

_KILLED, _BROKEN = 137, 255


class LinkFault(enum.Enum):
    """What is wrong with an agent or its connection."""

    DEAD = "the agent cannot be started"
    MUTE = "the agent says nothing"
    SLOW = "lines come in parts"
    SILENT = "the connection is silent for a while"
    GARBAGE = "text that is nearly a record"
    INVALID = "an invalid record"
    LOST = "the connection breaks"
    STUBBORN = "the agent does not end"


class SimulatedAgent:
    """An agent, and its connection: `plaunch.engines.AgentHandle`.

    Args:
        system: the operating system.
        node: its name.
        fault: what is wrong with it, or None.
        note: adds a line to the history.

    Attributes:
        printed: what its workers have written to stdout.
        has_delivered: whether all of that, and its end, has arrived.
        is_closed: whether the command has released it.
    """

    address = "127.0.0.1"

    def __init__(
        self,
        system: SimulatedSystem,
        node: str,
        fault: LinkFault | None,
        note: Callable[[str, str], None],
    ) -> None:
        self.node = node
        self.fault = fault
        self.printed = b""
        self.has_delivered = self.is_closed = False
        self._descriptors = system.descriptors
        self._hub = system.hub
        self._random = system.hub.random
        self._note = note
        self.stdout, self._out = system.descriptors.pipe()
        self.stderr, self._err = system.descriptors.pipe()
        self._code: int | None = None  # of what the command sees
        self._is_alive = True  # the agent itself
        self._has_settings = self._is_stopping = False
        self._nonce = ""
        self._queue: deque[tuple[int, bytes]] = deque()
        self._exits_with: int | None = None
        self._at = self._random.uniform(0.0, 20.0)  # when its fault happens
        self._silence = self._random.uniform(1.0, 60.0)
        self._stop_time = self._random.uniform(0.1, 5.0)
        self._hub.spawn(self._run_link, f"connection to {node}")
        self._hub.spawn(self._begin, f"agent on {node}")

    @property
    def may_train(self) -> bool:
        """Whether it takes part in the job, and is not about to leave."""
        return self._is_alive and self._has_settings and not self._is_stopping

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended."""
        return not self._is_alive

    # --- what the command calls -------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Receive messages, a moment later."""
        for line in data.splitlines():
            delay = self._random.expovariate(50.0)
            message = json.loads(line)
            self._hub.call_later(delay, lambda message=message: self._receive(message))  # type: ignore[misc]

    def poll(self) -> int | None:
        """Return the exit code."""
        return self._code

    def stop(self) -> None:
        """End it as SIGKILL does."""
        self._is_alive = False
        self._break_off(_KILLED)

    def close(self) -> None:
        """Release it."""
        self.is_closed = True
        for fd in (self.stdout, self.stderr):
            self._descriptors.close(fd)

    # --- the agent --------------------------------------------------------------------------------

    def begin_round(self, number: int, nodes: int) -> None:
        """Its workers begin a round."""
        self._note(self.node, f"round {number} of {nodes} nodes")
        self._report(
            kind="running", round=number, attempt=number, nodes=nodes, workers=nodes,
            is_job_wide=True,
        )  # fmt: skip

    def print_line(self, number: int) -> None:
        """A worker writes a line."""
        text = b"%s line %d\n" % (self.node.encode(), number)
        if self.fault is LinkFault.GARBAGE and number % 3 == 0:
            text = b"\x1eplaun" + bytes(self._random.randrange(1, 256) for _ in range(20)) + b"\n"
            text = text.replace(b"\r", b" ")
        self.printed += text
        self._send(self._out, text)

    def end(self, verdict: str, code: int, *, is_first: bool, is_member: bool) -> None:
        """The job has ended."""
        if code:
            self._report(
                kind="failure", text=f"the job has failed with {code}", code=code,
                is_first=is_first, is_of_workers=True, is_consequence=False,
            )  # fmt: skip
        self._exit(code, has_succeeded=is_member and not code, verdict=verdict)

    def _begin(self) -> None:
        self._hub.sleep(self._random.uniform(0.05, 2.0))
        if self.fault is LinkFault.DEAD:
            self._send(self._err, b"ssh: connect to host: Connection refused\n")
            self._is_alive = False
            self._exits_with = _BROKEN
            return
        if self.fault is LinkFault.MUTE or not self._is_alive:
            return
        python = ".".join(map(str, sys.version_info[:3]))
        self._report(
            kind="hello", protocol=VERSION, version=__version__, python=python, host=self.node,
            pid=1, has_folder=True, script="9 bytes", port=20000, addresses=[], client="",
        )  # fmt: skip
        if self.fault is LinkFault.LOST:
            self._hub.sleep(self._at)
            self._note("FAULT", f"the connection to {self.node} breaks")
            self._break_off(_BROKEN)
            self._hub.sleep(self._random.uniform(0.0, 2.0))
            self._is_alive = False  # its stdin has ended

    def _receive(self, message: dict[str, object]) -> None:
        if not self._is_alive or self._code is not None:
            return
        if "nonce" in message:
            self._nonce = str(message["nonce"])
        if "probe" in message:
            return
        if "signal" in message or "leave" in message:
            signum = message.get("signal", 15)
            assert isinstance(signum, int)
            if not self._is_stopping:
                self._is_stopping = True
                self._hub.call_later(self._stop_time, lambda: self._leave(128 + signum))
            return
        self._has_settings = True
        if self.fault is LinkFault.INVALID:
            record = encode(self._nonce, kind="running", round=-7)
            self._hub.call_later(self._at, lambda: self._send(self._err, record))

    def _leave(self, code: int) -> None:
        if self._is_alive and self._exits_with is None:
            self._exit(code, has_succeeded=False, verdict="")

    def _exit(self, code: int, *, has_succeeded: bool, verdict: str) -> None:
        self._is_stopping = True
        self._report(kind="end", code=code, has_succeeded=has_succeeded, verdict=verdict)
        self._send(self._out, encode(self._nonce, kind="end_of_output"))
        if self.fault is not LinkFault.STUBBORN:
            self._is_alive = False
            self._exits_with = code

    def _report(self, **fields: object) -> None:
        nonce = "" if fields["kind"] == "hello" else self._nonce
        self._send(self._err, encode(nonce, **fields))

    # --- the connection ---------------------------------------------------------------------------

    def _send(self, fd: int, data: bytes) -> None:
        if self._code is None:
            self._queue.append((fd, data))

    def _run_link(self) -> None:
        """Carry what the agent writes, and then its end."""
        hub, random = self._hub, self._random
        while self._code is None:
            if self.fault is LinkFault.SILENT and self._at <= hub.now < self._at + self._silence:
                hub.sleep(self._at + self._silence - hub.now)
                continue
            if not self._queue:
                if self._exits_with is not None:
                    self.has_delivered = True
                    self._break_off(self._exits_with)
                    return
                hub.sleep(0.02)
                continue
            fd, data = self._queue.popleft()
            if self.fault is LinkFault.SLOW and len(data) > 1:
                cut = random.randrange(1, len(data))
                self._queue.appendleft((fd, data[cut:]))
                data = data[:cut]
                hub.sleep(random.choice((0.0, 0.01, 0.3)))
            if self._code is None:
                self._write(fd, data)

    def _write(self, fd: int, data: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            self._descriptors.write(fd, data)

    def _break_off(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._queue.clear()
            self._descriptors.close(self._out)
            self._descriptors.close(self._err)
