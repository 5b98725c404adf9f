"""The options that all backends share (`--rdzv-conf`): times, and the job's token."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from plaunch.durations import LIMIT, LONGEST, PATIENCE, PERIOD, Duration
from plaunch.errors import UsageError
from plaunch.rendezvous import TOKEN_OPTION, TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch.rendezvous import JobSettings, RendezvousParameters

_log = logging.getLogger("plaunch")

_MIN_TOKEN, _SAFE_TOKEN, _MAX_TOKEN = 16, 32, 4096  # bytes
_ATTEMPTS = "keep_alive_max_attempt"
_MAX_ATTEMPTS = 1_000_000
_MAY_BE = {
    "join_timeout": LIMIT,
    "last_call_timeout": PATIENCE,
    "arrival_delay": PATIENCE,
    "close_timeout": PATIENCE,
    "unreachable_timeout": LIMIT,
    "refused_timeout": LIMIT,
    "verdict_ttl": Duration(may_be_zero=True),  # other programs read it; it must be finite
    "cas_backoff_max_seconds": Duration(may_be_zero=True),  # finite in torchrun, too
}


@dataclass(frozen=True)
class WaitBounds:
    """The times of a node that no option sets, in seconds; tests use shorter ones.

    Args:
        check_interval: the time between two checks for stuck threads, and of what a wait is for.
        stuck_after: how late an operation may be before its thread is replaced.
        query_interval: the time between two queries for the nodes that have arrived.
        start_margin: how much longer than the launch's start timeout it waits for the first round.
    """

    check_interval: float = 1.0
    stuck_after: float = 6.0
    query_interval: float = 2.0
    start_margin: float = 10.0


WAIT_BOUNDS = WaitBounds()


@dataclass(frozen=True)
class Timing:
    """The intervals and timeouts of a rendezvous, in seconds, with torchrun's names.

    Args:
        join_timeout: limit for the arrival of enough nodes; by default the start timeout of the
            launch, if it has one.
        last_call_timeout: how long to wait for further nodes once there are `min_nodes`.
        cas_backoff_max_seconds: the longest backoff after another node changed the job's state
            first; the backoff is random, so that many nodes do not retry in step. Capped at
            `keep_alive_interval`, because it delays heartbeats.
        arrival_delay: after a node has arrived while a round with room runs, how long to wait for
            further ones before the round ends; None: `last_call_timeout`.
        close_timeout: limit for announcing the node's departure.
        keep_alive_interval: the time between two heartbeats.
        keep_alive_max_attempt: the number of missed heartbeats after which a node is lost.
        unreachable_timeout: how long the store may not answer before the workers are stopped.
        refused_timeout: how long the host of the store may refuse connections, because no
            launcher listens there, before the workers are stopped.
        verdict_ttl: how long a finished run id returns its verdict instead of starting again.

    The defaults of the first two, and of `close_timeout`, are torchrun's. Its keep-alive defaults
    are 5 s and 3.
    """

    join_timeout: float = 600.0
    last_call_timeout: float = 30.0
    close_timeout: float = 30.0
    keep_alive_interval: float = 1.0
    keep_alive_max_attempt: int = 5
    unreachable_timeout: float = 60.0
    refused_timeout: float = 7.0
    verdict_ttl: float = 600.0
    cas_backoff_max_seconds: float = 0.0
    arrival_delay: float | None = None

    @property
    def arrival_patience(self) -> float:
        """Seconds that a round with room continues after a node has arrived."""
        return self.last_call_timeout if self.arrival_delay is None else self.arrival_delay

    @property
    def longest_backoff(self) -> float:
        """The longest backoff after another node changed the state first, in seconds."""
        return min(self.cas_backoff_max_seconds, self.keep_alive_interval)

    def stop_patience(self, stop_timeout: float) -> float:
        """Return the seconds that the next round waits for a node that leaves to stop its workers.

        Args:
            stop_timeout: what the node itself says; `LONGEST` if its grace period has no end.
        """
        return self.join_timeout if stop_timeout >= LONGEST else stop_timeout

    def join_patience(
        self, job: JobSettings, *, is_first: bool, margin: float = WAIT_BOUNDS.start_margin
    ) -> float:
        """Return the seconds that this node waits for a round.

        A launch with a start timeout ends itself while it waits for the first round, and reports
        what it waited for. The node therefore waits longer by `margin` seconds.
        """
        is_left_to_launch = is_first and job.start_timeout == self.join_timeout
        return self.join_timeout + (margin if is_left_to_launch else 0.0)

    @classmethod
    def from_parameters(cls, params: RendezvousParameters, options: Collection[str] = ()) -> Timing:
        """Read the options that all backends share, and reject unknown ones.

        Args:
            params: the parameters of the rendezvous.
            options: the names of the backend's own options.

        Raises:
            UsageError: an option is unknown, or its value is invalid.
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
    if value is not None and not 0 < value <= _MAX_ATTEMPTS:
        raise UsageError(
            f"option {_ATTEMPTS!r} of rendezvous backend {params.backend!r} is {value}; it is a "
            f"number from 1 to {_MAX_ATTEMPTS} (--rdzv-conf)"
        )
    return value


def check_parameters(
    params: RendezvousParameters,
    options: Collection[str],
    read: Callable[[RendezvousParameters], object],
) -> None:
    """Raise what creating a `DynamicRendezvousHandler` raises; for `BackendTraits.check`.

    Args:
        params: the parameters of the rendezvous.
        options: the names of the backend's own options.
        read: reads these and the endpoint as the backend does, and contacts nothing.

    Raises:
        UsageError: an option, the endpoint or the token is invalid.
        PluginLoadError: `read` imports what is missing.
    """
    Timing.from_parameters(params, options)
    read(params)
    read_token(params, os.environ)


# --- the token ------------------------------------------------------------------------------------


def read_token(params: RendezvousParameters, environ: Mapping[str, str]) -> bytes | None:
    """Read the job's token, without surrounding white space; None if there is none.

    It is read from the file given by the option `token_file`, or else from `PLAUNCH_RDZV_TOKEN`. No
    error or message contains any of it.

    Raises:
        UsageError: the file cannot be read, or the token is empty, too short or too long.
    """
    path = params.get(TOKEN_OPTION)
    variable = environ.get(TOKEN_VARIABLE)
    params.secrets_read.add(TOKEN_OPTION)
    if path is not None:
        if variable:
            _log.debug("the job token is read from %r; %s is ignored", path, TOKEN_VARIABLE)
        return _checked_token(_read_token_file(str(path)), f"the token file {path!r} (--rdzv-conf)")
    if variable:
        return _checked_token(os.fsencode(variable), TOKEN_VARIABLE)
    return None


def warn_of_short_token(token: bytes | None) -> None:
    """Log that a token can be guessed, if it is so short."""
    if token is not None and len(token) < _SAFE_TOKEN:
        _log.warning(
            "the job token has %d characters; one of fewer than %d may be guessed by a program "
            "that listens at the endpoint instead of the host, and tries words on the proofs of "
            "nodes; use the output of `openssl rand -hex 32`",
            len(token),
            _SAFE_TOKEN,
        )


def _read_token_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_TOKEN + 1)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the token file {path!r} (--rdzv-conf) cannot be read: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning(
            "the token file %r is open to every user of this machine (mode %03o); remove the "
            "permission with chmod o-rw",
            path,
            stat.S_IMODE(mode),
        )
    return content


def _checked_token(content: bytes, where: str) -> bytes:
    token = content.strip()
    if len(token) >= _MIN_TOKEN and len(content) <= _MAX_TOKEN:
        return token
    found = "is empty" if not token else f"has {len(token)} bytes"
    if len(content) > _MAX_TOKEN:
        found = f"has more than {_MAX_TOKEN} bytes"
    raise UsageError(
        f"{where} {found}; a job token has from {_MIN_TOKEN} to {_MAX_TOKEN} bytes, such as the "
        "output of `openssl rand -hex 32`"
    )
