"""The engine `ray`: one agent on each of several nodes of a running Ray cluster."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError
from plaunch.numbers import digits
from plaunch.texts import printable_output

from plaunch_engines.agent_pipes import AgentPipes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.engines import EngineRequest

_ADDRESS = "RAY_ADDRESS"
_AUTO = "auto"  # for Ray: the cluster of this machine
_STOP_WAIT = 10.0  # seconds for the cluster to report the end of an agent, after `stop`
_KILLED = 137


class RayEngine:
    """Starts each agent as the child of an actor.

    Args:
        request: `where` is the address of the cluster; by default RAY_ADDRESS, or the cluster that
            runs on this machine.

    Raises:
        UsageError: the address is invalid, or Ray is not installed.
    """

    nodes = None
    can_replace = True
    used_options = ("exclude",)

    def __init__(self, request: EngineRequest) -> None:
        self._address = read_address(request.where)
        self._resources = read_resources(request.options["ray_resources"])
        self._excluded = [*request.exclude]
        if find_spec("ray") is None:
            raise UsageError(
                "--on=ray needs the package ray in the version of the cluster: install plaunch[ray]"
            )
        self._client: ClientProcess | None = None

    def start(self, command: Sequence[str], indices: Sequence[int]) -> list[RayHandle]:
        """Reserve a node for each agent, and start it there.

        Raises:
            UsageError: the connection to the cluster is lost.
        """
        if self._client is None:
            self._client = ClientProcess(self._address, self._resources, self._excluded)
        return [
            RayHandle(self._client, command, index, is_last=index == indices[-1])
            for index in indices
        ]

    def close(self) -> None:
        """End the connection to the cluster, which ends all actors."""
        if self._client is not None:
            self._client.close()


class ClientProcess:
    """The process that is connected to the cluster; see `plaunch_engines.ray_client`.

    Args:
        address: of the cluster.
        resources: what is reserved on each node.
        excluded: the names of nodes that are not used.
    """

    def __init__(
        self, address: str, resources: dict[str, float], excluded: Sequence[str] = ()
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - of Ray, closed by `close`
        self._reports: dict[int, dict[str, Any]] = {}
        self._is_ended = False
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "plaunch_engines.ray_client", str(theirs.fileno()),
                    address, json.dumps(resources), json.dumps(excluded),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip

    def request(self, message: dict[str, object], fds: Sequence[int]) -> None:
        """Request an agent, with its standard input, output and error.

        Raises:
            UsageError: the process has ended.
        """
        try:
            self._control.settimeout(_STOP_WAIT)
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)
        except OSError as error:
            self._process.wait(_STOP_WAIT)
            raise UsageError(
                f"the connection to Ray is lost ({self._process.returncode}): {self._last_line()}"
            ) from error

    def report_of(self, index: int) -> dict[str, Any]:
        """Return what is known of an agent: its node, address and exit code."""
        while not self._is_ended:
            try:
                self._control.setblocking(False)
                data = self._control.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._is_ended = True
                break
            report = json.loads(data)
            self._reports.setdefault(report["index"], {}).update(report)
        report = self._reports.setdefault(index, {})
        if self._is_ended:
            report.setdefault("code", _KILLED)
        return report

    def close(self) -> None:
        """End the process; may be called again."""
        self._control.close()
        self._is_ended = True
        try:
            self._process.wait(_STOP_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        line = next((line for line in reversed(lines) if line.strip()), "no reason is known")
        return printable_output(line)


class RayHandle(AgentPipes):
    """An agent on a node that Ray chooses.

    Args:
        client: is connected to the cluster.
        command: of the agent.
        index: the number of the agent in the job.
        is_last: whether no other agent is requested together with it.

    Raises:
        UsageError: the client has ended.
    """

    def __init__(
        self, client: ClientProcess, command: Sequence[str], index: int, *, is_last: bool
    ) -> None:
        super().__init__("a node of Ray")
        self._client = client
        self._index = index
        self._stop_until: float | None = None
        message = {"index": index, "command": list(command), "is_last": is_last}
        try:
            client.request(message, self._of_agent)
        except BaseException:
            self.close()
            raise
        self._close_ends_of_agent()

    def poll(self) -> int | None:
        """Return its exit code; None while it runs. Updates the node and its address."""
        self._flush()
        report = self._client.report_of(self._index)
        self.node = report.get("node", self.node)
        self.address = report.get("address", self.address)
        code: int | None = report.get("code")
        if code is None and self._stop_until is not None and time.monotonic() >= self._stop_until:
            return _KILLED  # nothing is known of it; it ends with the connection
        return code

    def stop(self) -> None:
        """Close the standard input of the request, upon which the client kills the agent."""
        if self._stop_until is None:
            self._stop_until = time.monotonic() + _STOP_WAIT
            self._close_stdin()


def read_address(where: str) -> str:
    """Return the address for Ray, which must not start a cluster of its own.

    Args:
        where: HOST:PORT, or empty for that of RAY_ADDRESS, or the cluster of this machine.

    Raises:
        UsageError: it is not an address.
    """
    address, source = where, f"--on=ray:{where}"
    if not address:
        address = os.environ.get(_ADDRESS, "")
        source = f"{_ADDRESS}={address}"
    if address in ("", _AUTO):
        return _AUTO
    if address.startswith("ray://"):
        raise UsageError(
            f"{source}: Ray's client protocol does not end a job with its command; run the command "
            "on a node of the cluster, with HOST:PORT"
        )
    host, _, port = address.rpartition(":")
    if not host or not digits(port, 65535):
        raise UsageError(f"{source}: {address!r} is not HOST:PORT of a running Ray cluster")
    return address


def read_resources(text: str) -> dict[str, float]:
    """Read what Ray reserves on each node: one CPU, unless the text has another number.

    Raises:
        UsageError: it is not a JSON object of amounts.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not all(
        type(amount) in (int, float) and amount >= 0 for amount in given.values()
    ):
        raise UsageError(
            f'--ray-resources: {text!r} is not a JSON object, such as {{"CPU": 16, "GPU": 8}}'
        )
    resources = {name: amount for name, amount in {"CPU": 1, **given}.items() if amount}
    if not resources:
        raise UsageError(f"--ray-resources: {text!r} requests nothing; write an amount above 0")
    return resources
