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

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_MESSAGE = 128 << 10  # bytes
_CONNECT_TIMEOUT = 5.0  # seconds for the cluster to accept a connection
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


@dataclass
class ReservedBundle:
    """A part of a placement group, where one agent runs.

    Args:
        group: the placement group.
        number: of the bundle in it.
        agent: the index of the agent that uses it; None if it is free for another one.
        node: the identifier of the node of the last agent; empty before.
    """

    group: Any
    number: int
    agent: int | None = None
    node: str = ""


class RayCluster:
    """The cluster, and what the job has reserved there.

    Args:
        address: of the cluster; "auto" for RAY_ADDRESS, or the cluster of this machine.
        resources: what is reserved on each node.
        excluded: the names of nodes that are not used: those that `ray start` was given, host
            names, or addresses.
    """

    def __init__(
        self, address: str, resources: dict[str, float], excluded: Sequence[str] = ()
    ) -> None:
        self.address = address
        self._resources = resources
        self._excluded = excluded
        self._bundles: list[ReservedBundle] = []

    def connect(self) -> None:
        """Connect to the cluster; never start one. May block for as long as it does not answer.

        Raises:
            ConnectionError: no cluster listens there.
        """
        import ray

        host, _, port = self.address.rpartition(":")
        if host:
            try:
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
            except OSError as error:
                raise ConnectionError(
                    f"no Ray cluster at {self.address}: {error.strerror or error}; this must "
                    f"work: ray status --address={self.address}"
                ) from error
        try:
            ray.init(self.address, log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            if self.address != "auto":
                raise
            raise ConnectionError(
                f"no Ray cluster runs on {socket.gethostname()}; begin it with ray start, or name "
                "another one with --on=ray:HOST:PORT"
            ) from error
        ray.cloudpickle.register_pickle_by_value(ray_actor)

    def reserve(self, agents: Sequence[AgentRequest]) -> list[ReservedBundle]:
        """Return a bundle for each agent; Ray may still look for their nodes.

        Bundles whose agent was lost are used again: if their node is lost, Ray moves them to
        another one.
        """
        import ray

        free = [bundle for bundle in self._bundles if bundle.agent is None]
        count = len(agents) - len(free)
        if count > 0:
            used = sorted(
                {bundle.node for bundle in self._bundles if bundle.node}
                | {node["NodeID"] for node in self._nodes(is_excluded=True)}
            )
            selector = {"ray.io/node-id": f"!in({','.join(used)})"} if used else {}
            group = ray.util.placement_group(
                [self._resources] * count,
                strategy="STRICT_SPREAD",
                bundle_label_selector=[selector] * count if selector else None,
            )
            added = [ReservedBundle(group, number) for number in range(count)]
            self._bundles += added
            free += added
        for bundle, agent in zip(free, agents, strict=False):
            bundle.agent, bundle.node = agent.index, ""
        return free[: len(agents)]

    def create_actor(self, bundle: ReservedBundle) -> Any:
        """Return an actor in a bundle, which starts when the bundle has a node."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        others = dict(self._resources)
        return (
            ray.remote(concurrency_groups={"input": 1, "output": 1})(ray_actor.AgentActor)
            .options(
                num_cpus=others.pop("CPU", 0),
                num_gpus=others.pop("GPU", 0),
                memory=others.pop("memory", None),
                resources=others,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    bundle.group, placement_group_bundle_index=bundle.number
                ),
            )
            .remote()
        )

    def has_this_node(self) -> bool:
        """Whether the node of this process is alive; Ray ends all actors of the job without it."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        return any(node["NodeID"] == own and node["Alive"] for node in ray.nodes())

    def name_of(self, node: str) -> str:
        """Return the name of a node: what the user has named it, or its host."""
        import ray

        names = {
            each["NodeID"]: each["NodeManagerHostname"]
            if each["NodeName"] == each["NodeManagerAddress"]
            else each["NodeName"]
            for each in ray.nodes()
        }
        name = str(names.get(node, node))
        is_unique = sum(name == other for other in names.values()) == 1
        return name if is_unique else f"{name}-{node[:6]}"

    def _nodes(self, *, is_excluded: bool) -> list[dict[str, Any]]:
        """Return the nodes that are alive, and are excluded or not."""
        import ray

        names = ("NodeName", "NodeManagerHostname", "NodeManagerAddress")
        return [
            node
            for node in ray.nodes()
            if node["Alive"] and any(node[name] in self._excluded for name in names) is is_excluded
        ]

    def describe_wait(self) -> str:
        """Describe what is requested, and what the cluster has."""
        import ray

        alive = self._nodes(is_excluded=False)
        large = [
            node
            for node in alive
            if all(node["Resources"].get(k, 0) >= v for k, v in self._resources.items())
        ]
        free = ray.available_resources()
        return (
            f"{len(self._bundles)} nodes with {_amounts(self._resources)} each are requested; of "
            f"the {len(alive)} nodes of this Ray cluster, {len(large)} have that much, and in all, "
            f"{_amounts({name: free.get(name, 0) for name in self._resources})} are free"
        )


class RayClient:
    """Runs the agents that the command requests.

    Args:
        control: the socket to the command.
        cluster: where the agents run.
    """

    def __init__(self, control: socket.socket, cluster: RayCluster) -> None:
        self._control = control
        self._cluster = cluster
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
            await asyncio.wait([connected], timeout=_SILENCE)
            if not connected.done():
                for agent in agents:
                    address = self._cluster.address
                    await agent.explain(
                        f"the Ray cluster {address} has not answered yet; this must work: ray "
                        f"status --address={address}"
                    )
            await asyncio.shield(connected)
            bundles = self._cluster.reserve(agents)
        except Exception as error:  # noqa: BLE001 - Ray's own, of many kinds
            for agent in agents:
                await agent.explain(str(error))
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
        await asyncio.wait([started], timeout=_SILENCE)
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
            if code is not None:
                self._send(index=agent.index, code=code)
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


async def _result(reference: Any) -> Any:
    return await reference


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()))


def main(arguments: Sequence[str]) -> NoReturn:
    """Serve a command until it has ended."""
    fd, address, resources, excluded = arguments
    cluster = RayCluster(address, json.loads(resources), json.loads(excluded))
    client = RayClient(socket.socket(fileno=int(fd)), cluster)
    asyncio.run(client.run())
    raise SystemExit


if __name__ == "__main__":
    main(sys.argv[1:])
