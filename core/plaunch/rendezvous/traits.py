"""What a launcher must know of a backend before it creates a handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from plaunch.errors import UsageError
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

_ATTRIBUTE = "plaunch_traits"


@plain_dataclass
class BackendTraits(Value):
    """How the nodes of a backend find each other; new fields may be added.

    Args:
        needs_endpoint: whether several nodes need an endpoint to meet.
        default_port: of an endpoint without one; None if the backend has none.
        is_hosted_by_node: whether the endpoint is one of the nodes, which a scheduler can name.
        is_single_node: whether a node without an endpoint is a job of its own, with a run id for
            itself.
        has_given_ranks: whether nodes get their ranks from `--node-rank`, and meet at
            `--master-addr` and `--master-port`.
        coordinates_restarts: whether a failure on one node restarts the workers of all nodes.
        fill: is called before the settings of a launch with this backend are made, with the parsed
            options (`plaunch.cli.Arguments`). It gives values to options that have none, warns, or
            raises `UsageError`.
    """

    needs_endpoint: bool = False
    default_port: int | None = None
    is_hosted_by_node: bool = False
    is_single_node: bool = False
    has_given_ranks: bool = False
    coordinates_restarts: bool = False
    fill: Callable[[Any], None] | None = None

    def check_endpoint(self, backend: str, endpoint: str, max_nodes: int) -> None:
        """Check that several nodes have an endpoint if they need one.

        Args:
            backend: the name of the backend.
            endpoint: the endpoint; empty if none was given.
            max_nodes: how many nodes the job has at most.

        Raises:
            UsageError: it is missing; each node would wait for the others by itself.
        """
        if endpoint or max_nodes == 1 or not self.needs_endpoint:
            return
        if self.has_given_ranks:
            advice = (
                "--master-addr with that of node 0, the same on all nodes (127.0.0.1 if all are on "
                "this machine), or choose an elastic backend with --rdzv-backend and "
                "--rdzv-endpoint"
            )
        elif self.is_hosted_by_node:
            advice = (
                "--rdzv-endpoint with the name of one node, the same on all nodes (localhost if "
                "all are on this machine)"
            )
        else:
            advice = (
                "--rdzv-endpoint with the address of the backend's store, the same on all nodes"
            )
        raise UsageError(
            f"{max_nodes} nodes (--nnodes) with the backend {backend!r} need an address that all "
            f"of them know, and none was given; give {advice}"
        )


def backend_traits(traits: BackendTraits) -> Callable[[F], F]:
    """Declare the traits of a backend; decorates the function that creates its handlers."""

    def declare(factory: F) -> F:
        setattr(factory, _ATTRIBUTE, traits)
        return factory

    return declare


def traits_of(factory: object) -> BackendTraits:
    """The traits that a factory of handlers declares, or the defaults."""
    traits = getattr(factory, _ATTRIBUTE, None)
    return traits if isinstance(traits, BackendTraits) else BackendTraits()
