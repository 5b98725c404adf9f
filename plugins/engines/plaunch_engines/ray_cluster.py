"""A Ray cluster, and what a job has reserved there."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plaunch_engines import ray_actor

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONNECT_TIMEOUT = 5.0  # seconds for the cluster to accept a connection


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

    def reserve(self, agents: Sequence[int]) -> list[ReservedBundle]:
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
            bundle.agent, bundle.node = agent, ""
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

    def _large_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that have what is reserved on each node, free or not."""
        return [
            node
            for node in self._nodes(is_excluded=False)
            if all(node["Resources"].get(k, 0) >= v for k, v in self._resources.items())
        ]

    def _nodes(self, *, is_excluded: bool) -> list[dict[str, Any]]:
        """Return the nodes that are alive, and are excluded or not."""
        import ray

        names = ("NodeName", "NodeManagerHostname", "NodeManagerAddress")
        return [
            node
            for node in ray.nodes()
            if node["Alive"] and any(node[name] in self._excluded for name in names) is is_excluded
        ]

    def is_too_small(self) -> bool:
        """Whether the cluster has fewer nodes than the job needs, even if all are free."""
        return len(self._large_nodes()) < len(self._bundles)

    def describe_wait(self) -> str:
        """Describe what is requested, and what the cluster has."""
        import ray

        alive = self._nodes(is_excluded=False)
        large = self._large_nodes()
        free = ray.available_resources()
        return (
            f"{len(self._bundles)} nodes with {_amounts(self._resources)} each are requested; of "
            f"the {len(alive)} nodes of this Ray cluster, {len(large)} have that much, and in all, "
            f"{_amounts({name: free.get(name, 0) for name in self._resources})} are free"
        )


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()))
