"""The contract of health checks, which keep a node out of the job's next round if they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch.doctor import Finding

__all__ = ["HealthCheck", "HealthChecks", "HealthOccasion"]


@plain_dataclass
class HealthOccasion(Value):
    """Why a check is asked; new fields may be added.

    Args:
        is_restart: whether something has failed in the job; otherwise the launch begins.
        timeout: seconds within which the answer must come.
    """

    is_restart: bool = False
    timeout: float = 10.0


@runtime_checkable
class HealthCheck(Protocol):
    """Looks at this node before it joins a round. Plugins implement it.

    There is one object for the whole launch, so that it can compare the node with what it was at
    the start. If it has a method `close`, that is called once, at the end of the launch; `check`
    may still be at work then, on another thread.
    """

    def check(self, occasion: HealthOccasion) -> Iterable[Finding]:
        """What is found; a PROBLEM or BROKEN one keeps this node out of the job.

        It is called on a thread of its own, beside other checks, and never twice at a time. It may
        wait for what takes a moment to be well again. One that raises, or has not returned within
        `occasion.timeout` seconds, has failed.
        """


class HealthChecks(Protocol):
    """The checks that a launch has chosen, as its agent and the doctor ask them."""

    @property
    def timeout(self) -> float:
        """Seconds within which each has to answer."""

    def begin(self, wake: Callable[[], None], *, is_restart: bool) -> None:
        """Ask all of them; `wake` is called with each answer, on any thread."""

    def remaining(self) -> float:
        """Seconds until no answer is waited for any longer; 0 once there is no reason to wait."""

    def verdict(self) -> str:
        """What keeps this node out, in one line; empty if it is healthy. Asked once, at the end."""

    def calls(self) -> Mapping[str, Callable[[], Iterable[Finding]]]:
        """What asks each check once, by what the user wrote, for whoever brings threads along."""

    def close(self) -> None:
        """The launch is over."""
