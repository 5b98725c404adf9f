"""How long everything may take, as set with `--rdzv-conf`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from plaunch.durations import LIMIT, PATIENCE, PERIOD, Duration
from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from plaunch.rendezvous import JobSettings, RendezvousParameters

_ATTEMPTS = "keep_alive_max_attempt"
_MOST_ATTEMPTS = 1_000_000
_AFTER_START = 10.0  # seconds
_MAY_BE = {
    "join_timeout": LIMIT,
    "last_call_timeout": PATIENCE,
    "arrival_delay": PATIENCE,
    "close_timeout": PATIENCE,
    "unreachable_timeout": LIMIT,
    "verdict_ttl": Duration(may_be_zero=True),  # other programs keep it, which know no endless one
    "cas_backoff_max_seconds": Duration(may_be_zero=True),  # finite in torchrun, too
}


@dataclass(frozen=True)
class Timing:
    """The times of a rendezvous, in seconds; fractions are allowed. Names are torchrun's.

    Args:
        join_timeout: for enough nodes to arrive; the start time-out of the launch, if there is one
            and nothing else was said.
        last_call_timeout: for further nodes, once there are enough.
        cas_backoff_max_seconds: at most, after this node's change of the job's state lost against
            another node's; the pause is random, so that many nodes do not try again in step. Never
            longer than `keep_alive_interval`, because a pause delays heartbeats.
        arrival_delay: for further nodes, once one has come while a round runs that has room for it;
            None: as long as `last_call_timeout`.
        close_timeout: for saying that the node departs.
        keep_alive_interval: between two heartbeats.
        keep_alive_max_attempt: how many may be missed before a node is lost; a number, no seconds.
        unreachable_timeout: without any answer from the store before the workers are stopped.
        verdict_ttl: for which a run id that is over answers how it ended.

    The defaults of the first two, and of `close_timeout`, are torchrun's. Its keep-alive defaults
    are 5 s and 3.
    """

    join_timeout: float = 600.0
    last_call_timeout: float = 30.0
    close_timeout: float = 30.0
    keep_alive_interval: float = 1.0
    keep_alive_max_attempt: int = 5
    unreachable_timeout: float = 60.0
    verdict_ttl: float = 600.0
    cas_backoff_max_seconds: float = 0.0
    arrival_delay: float | None = None

    @property
    def arrival_patience(self) -> float:
        """How long a round with room goes on after a node has come, so that others may come too."""
        return self.last_call_timeout if self.arrival_delay is None else self.arrival_delay

    @property
    def longest_backoff(self) -> float:
        """The longest pause after a change that lost against another node's, in seconds."""
        return min(self.cas_backoff_max_seconds, self.keep_alive_interval)

    def join_patience(self, job: JobSettings, *, is_first: bool) -> float:
        """How long this node waits for a round.

        A launch with a start time-out ends by itself while it waits for the first one, and says
        what it has waited for; it is left the time to do so.
        """
        is_left_to_launch = is_first and job.start_timeout == self.join_timeout
        return self.join_timeout + (_AFTER_START if is_left_to_launch else 0.0)

    @classmethod
    def from_parameters(cls, params: RendezvousParameters, options: Collection[str] = ()) -> Timing:
        """Read the options that every backend has, and refuse unknown ones.

        Args:
            params: what the user gave.
            options: the names of the backend's own options.

        Raises:
            UsageError: an option is unknown, or its value cannot be used.
        """
        names = [f.name for f in fields(cls)]
        params.refuse_unknown(frozenset({*names, *options, "token_file"}))
        values: dict[str, float] = {}
        if params.job.start_timeout is not None:
            values["join_timeout"] = params.job.start_timeout
        for name in names:
            if name == _ATTEMPTS:
                value: float | None = _read_attempts(params)
            else:
                value = params.get_as_seconds(name, None, _MAY_BE.get(name, PERIOD))
            if value is not None:
                values[name] = value
        return cls(**values)  # type: ignore[arg-type]


def _read_attempts(params: RendezvousParameters) -> int | None:
    value = params.get_as_int(_ATTEMPTS)
    if value is not None and not 0 < value <= _MOST_ATTEMPTS:
        raise UsageError(
            f"option {_ATTEMPTS!r} of rendezvous backend {params.backend!r} is {value}; it is a "
            f"number from 1 to {_MOST_ATTEMPTS} (--rdzv-conf)"
        )
    return value
