"""The contract of health checks, which exclude a node from the next round if they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch.doctor import Finding

__all__ = ["HealthCheck", "HealthChecks", "HealthOccasion"]


@plain_dataclass
class HealthOccasion(Value):
    """Why a check runs; new fields may be added.

    Args:
        is_restart: whether a failure precedes it; otherwise the launch begins.
        timeout: seconds until the check must have returned.
    """

    is_restart: bool = False
    timeout: float = 10.0


@runtime_checkable
class HealthCheck(Protocol):
    """Checks this node before it joins a round. Plugins implement it.

    One object serves the whole launch, so it can compare the node with its state at the start. If
    it has a method `close`, that is called once, at the end of the launch; `check` may still be
    running then, on another thread.
    """

    def check(self, occasion: HealthOccasion) -> Iterable[Finding]:
        """Return findings; a PROBLEM or BROKEN one excludes this node from the job.

        Called on its own thread, at the same time as other checks, and never twice at once. It may
        wait for a resource to recover. It has failed if it raises, or has not returned within
        `occasion.timeout` seconds.
        """


class HealthChecks(Protocol):
    """The selected checks of a launch, for its agent and the doctor."""

    @property
    def timeout(self) -> float:
        """Seconds until each check must have returned."""

    def begin(self, wake: Callable[[], None], *, is_restart: bool) -> None:
        """Start all checks; `wake` is called after each one, on any thread."""

    def remaining(self) -> float:
        """Return the seconds left to wait; 0 if there is nothing to wait for."""

    def verdict(self) -> str:
        """Return why this node is excluded, in one line, or an empty text; called once."""

    def calls(self) -> Mapping[str, Callable[[], Iterable[Finding]]]:
        """Return a function for each check that runs it, by the name that the user wrote."""

    def close(self) -> None:
        """End the checks at the end of the launch."""
