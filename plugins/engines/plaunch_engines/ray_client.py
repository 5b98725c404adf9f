"""The process that is connected to a Ray cluster, between the command and the agents.

    python -m plaunch_engines.ray_client SOCKET ADDRESS RESOURCES EXCLUDED

A process of its own, because Ray installs signal handlers, writes to standard output and standard
error, and ends its process when the cluster is lost. The command sends a message for each agent,
with three descriptors: the agent's standard input, output and error. The end of standard input
stops the agent. This process reports where agents run, and their exit codes. It ends with the
command, and Ray ends the actors of a job whose process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from plaunch.errors import ExitCode

from plaunch_engines import ray_actor
from plaunch_engines.ray_cluster import RayCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_engines.ray_cluster import ReservedBundle

MAX_MESSAGE = 128 << 10  # bytes
_SILENCE = 4.0  # seconds until the reason why an agent waits is written
_STOP_WAIT = 3.0  # seconds for an agent to be killed, before its actor is
_MAX_REASON = 1000  # characters
_KILLED = 137


@dataclass
class AgentRequest:
    """An agent that the command has requested.

    Args:
        index: its number in the job.
        command: the program and its arguments.
        fds: its standard input, output and error.
    """

    index: int
    command: Sequence[str]
    fds: Sequence[int]

    async def write(self, fd: int, data: bytes) -> None:
        """Write to the command, which may be slow."""
        loop = asyncio.get_running_loop()
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                writable = loop.create_future()
                loop.add_writer(fd, writable.set_result, None)
                try:
                    await writable
                finally:
                    loop.remove_writer(fd)
            except BrokenPipeError:
                return

    async def explain(self, text: str) -> None:
        """Write a line to its standard error."""
        await self.write(self.fds[2], " ".join(text.split())[:_MAX_REASON].encode() + b"\n")

    async def read(self) -> bytes:
        """Wait for what the agent is to read; empty if it is to be stopped."""
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        loop.add_reader(self.fds[0], readable.set_result, None)
        try:
            await readable
        finally:
            loop.remove_reader(self.fds[0])
        return os.read(self.fds[0], ray_actor._MAX_READ)

    def close(self) -> None:
        """Close its descriptors."""
        for fd in self.fds:
            os.close(fd)


class RayClient:
    """Runs the agents that the command requests.

    Args:
        control: the socket to the command.
        cluster: where the agents run.
        silence: seconds until the reason why an agent waits is written.
    """

    def __init__(
        self, control: socket.socket, cluster: RayCluster, *, silence: float = _SILENCE
    ) -> None:
        self._control = control
        self._cluster = cluster
        self._silence = silence
        self._requested: list[AgentRequest] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve the command until it has ended, and end this process."""
        loop = asyncio.get_running_loop()
        connected = asyncio.ensure_future(asyncio.to_thread(self._cluster.connect))
        loop.add_reader(self._control, self._receive, connected)
        await asyncio.Event().wait()

    def _receive(self, connected: asyncio.Future[None]) -> None:
        """Take a message of the command; end with it, although Ray's threads may be blocked."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 3)
        except OSError:
            data, fds = b"", []
        if not data:
            os._exit(0)
        message = json.loads(data)
        os.set_blocking(fds[1], False)
        os.set_blocking(fds[2], False)
        self._requested.append(AgentRequest(message["index"], message["command"], fds))
        if message["is_last"]:
            agents, self._requested = self._requested, []
            task = asyncio.ensure_future(self._run_agents(agents, connected))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_agents(
        self, agents: Sequence[AgentRequest], connected: asyncio.Future[None]
    ) -> None:
        """Run agents whose resources are reserved together."""
        try:
            await asyncio.wait([connected], timeout=self._silence)
            was_silent = not connected.done()
            if was_silent:
                address = self._cluster.address
                await _explain(
                    agents,
                    f"the Ray cluster {address} has not answered yet; this must work: ray status "
                    f"--address={address}",
                )
            await asyncio.shield(connected)
            bundles = self._cluster.reserve([agent.index for agent in agents])
            # What was written is not true any more, or what is missing is known at once.
            if was_silent or await asyncio.to_thread(self._cluster.is_too_small):
                await _explain(agents, await asyncio.to_thread(self._cluster.describe_wait))
        except Exception as error:  # noqa: BLE001 - Ray's own, of many kinds
            await _explain(agents, str(error))
            for agent in agents:
                self._finish(agent, 1)
            return
        await asyncio.gather(*map(self._run_agent, agents, bundles))

    async def _run_agent(self, agent: AgentRequest, bundle: ReservedBundle) -> None:
        import ray

        code = _KILLED
        actor = None
        forwarding = None
        try:
            actor = self._cluster.create_actor(bundle)
            running = asyncio.ensure_future(self._follow(agent, bundle, actor))
            forwarding = asyncio.ensure_future(self._forward(agent, bundle, actor, running))
            code = await running
        except asyncio.CancelledError:
            pass
        except ray.exceptions.RayActorError as error:
            if not await asyncio.to_thread(self._cluster.has_this_node):
                os.write(2, b"Ray has lost the node where this command runs\n")
                os._exit(1)
            if not bundle.node:
                await agent.explain(str(error))
        except Exception as error:  # noqa: BLE001
            await agent.explain(str(error))
            code = 1
        finally:
            if forwarding is not None:
                forwarding.cancel()
            if actor is not None:
                ray.kill(actor)
            # An excluded node keeps its bundle, so that no agent of this job runs there again.
            if code != ExitCode.NODE_EXCLUDED:
                bundle.agent = None
            self._finish(agent, code)

    async def _follow(self, agent: AgentRequest, bundle: ReservedBundle, actor: Any) -> int:
        """Start an agent, and pass on its output until its end; return its exit code."""
        started = asyncio.ensure_future(_result(actor.start.remote(agent.command)))
        await asyncio.wait([started], timeout=self._silence)
        if not started.done():
            await agent.explain(await asyncio.to_thread(self._cluster.describe_wait))
        try:
            bundle.node, address = await started
        except OSError as error:
            cause = getattr(error, "cause", error)  # Ray raises a copy without its attributes
            await agent.explain(f"{agent.command[0]}: {cause.strerror}")
            return 127
        name = await asyncio.to_thread(self._cluster.name_of, bundle.node)
        self._send(index=agent.index, node=name, address=address)
        is_over = False
        code = None
        while not is_over:
            read = actor.read.options(concurrency_group="output").remote()
            out, err, code, is_over = await read
            await agent.write(agent.fds[1], out)
            await agent.write(agent.fds[2], err)
        return int(code or 0)

    async def _forward(
        self, agent: AgentRequest, bundle: ReservedBundle, actor: Any, running: asyncio.Future[int]
    ) -> None:
        """Pass on what the agent is to read; stop the agent at the end."""
        while data := await agent.read():
            await actor.write.options(concurrency_group="input").remote(data)
        if bundle.node:
            actor.stop.remote()
            await asyncio.wait([running], timeout=_STOP_WAIT)
        running.cancel()

    def _finish(self, agent: AgentRequest, code: int) -> None:
        self._send(index=agent.index, code=code)
        agent.close()

    def _send(self, **fields: object) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(fields).encode())


async def _explain(agents: Sequence[AgentRequest], text: str) -> None:
    for agent in agents:
        await agent.explain(text)


async def _result(reference: Any) -> Any:
    return await reference


def main(arguments: Sequence[str]) -> NoReturn:
    """Serve a command until it has ended."""
    fd, address, resources, excluded = arguments
    cluster = RayCluster(address, json.loads(resources), json.loads(excluded))
    client = RayClient(socket.socket(fileno=int(fd)), cluster)
    asyncio.run(client.run())
    raise SystemExit


if __name__ == "__main__":
    main(sys.argv[1:])
