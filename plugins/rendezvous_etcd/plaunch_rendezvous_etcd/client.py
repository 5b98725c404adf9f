"""One agent's link to a member of etcd, and the calls over it."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plaunch.errors import ExitCode, RendezvousConnectionError, RendezvousError
from plaunch_membership import ReconnectLog
from plaunch_network import resolve_host

from plaunch_rendezvous_etcd.diagnosis import EndpointProblem, diagnose
from plaunch_rendezvous_etcd.link import CallError, Link, create_credentials
from plaunch_rendezvous_etcd.versions import describe_minimum, is_outdated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plaunch_network import SocketAddress

    from plaunch_rendezvous_etcd.options import Endpoint, EtcdOptions
    from plaunch_rendezvous_etcd.protocol import Protocol

_log = logging.getLogger("plaunch")

_TIMEOUT_DECAY = 0.9  # of the current timeout, with each answer
_MIN_ATTEMPT = 0.5  # seconds for one address
_DIAGNOSIS = 2.0  # seconds


@dataclass(frozen=True)
class EtcdBounds:
    """The bounds of calls, in seconds; tests use other ones.

    Args:
        connect: the limit of one attempt to connect to all members.
        answer: the limit of one call.
        stream: how long watches survive without a stream.
    """

    connect: float = 5.0
    answer: float = 5.0
    stream: float = 5.0


ETCD_BOUNDS = EtcdBounds()


class EtcdAccessError(RendezvousError):
    """etcd rejects this configuration, or was not reachable when the job started."""

    exit_code: ClassVar[int] = ExitCode.CONTROL_PLANE_LOST


class EtcdClient:
    """One agent's access to etcd. Thread-safe.

    A link that fails is closed, with all calls in progress, and the next member is tried. The first
    link is awaited for at most `connect_timeout` seconds in all; later outages have no limit here.

    Args:
        options: the options of the backend.
        protocol: etcd's protocol.
        answer_timeout: seconds after which an unresponsive member is given up; capped at
            `bounds.answer` and at the option `read_timeout`.
        bounds: the bounds of calls.
    """

    def __init__(
        self,
        options: EtcdOptions,
        protocol: Protocol,
        *,
        answer_timeout: float,
        bounds: EtcdBounds = ETCD_BOUNDS,
    ) -> None:
        self.options = options
        self.protocol = protocol
        self.bounds = bounds
        self.answer_timeout = min(options.read_timeout, answer_timeout, bounds.answer)
        self.call_timeout = self.answer_timeout  # grows while answers come too late
        # Without another member, a new link would be no better than the current one.
        is_alone = len(options.endpoints) == 1
        self._max_silence = bounds.answer if is_alone else self.answer_timeout
        self._probe = f"{options.prefix}/".encode()
        self._credentials: Any = None
        self._connecting = threading.Lock()  # one thread looks for a member, the others wait
        self._lock = threading.Lock()
        self._link: Link | None = None
        # Agents start with a random member, so that the members share the load.
        self._next = random.randrange(len(options.endpoints))  # noqa: S311
        self._has_connected = False
        self._checked: set[Endpoint] = set()  # the members whose version is known
        self._has_warned_of_version = False
        self._is_closed = False
        self._reconnects = ReconnectLog("etcd", time.monotonic)
        self._connecting_since: float | None = None  # for the first link

    def link(self) -> Link:
        """Return the current link; open one if there is none, in about five seconds at most.

        Raises:
            RendezvousConnectionError: no member answers.
            EtcdAccessError: no member has answered within `connect_timeout`, or a retry cannot
                help.
        """
        with self._lock:
            if self._link is not None:
                return self._link
        with self._connecting:
            with self._lock:
                self._refuse_closed()
                if self._link is not None:
                    return self._link
            link = self._find_member()
            with self._lock:
                if self._is_closed:
                    link.close()
                    self._refuse_closed()
                self._link = link
                self._has_connected = True
            return link

    def call(self, service: str, name: str, request: Any) -> Any:
        """Call one of etcd's procedures; as `call_all` for one request."""
        (answer,) = self.call_all(service, name, [request])
        return answer

    def call_all(self, service: str, name: str, requests: Sequence[Any]) -> list[Any]:
        """Send requests to one of etcd's procedures, all at once; return the answers in order.

        Raises:
            RendezvousConnectionError: there is no answer, or etcd cannot process one now.
            CallError: etcd has rejected a request.
            EtcdAccessError: as in `link`.
        """
        link = self.link()
        timeout = self.call_timeout
        try:
            answers = link.call(service, name, requests, timeout)
        except CallError as error:
            if error.code == "DEADLINE_EXCEEDED":
                # An overloaded member must not get further load from new connections of all agents.
                self.call_timeout = min(2 * timeout, max(self.bounds.answer, self.answer_timeout))
                if link.silent_for() >= self._max_silence:
                    self.give_up(link)
            elif error.is_of_link:
                self.give_up(link)
            if error.is_of_link or error.is_of_login or error.is_of_load:
                raise RendezvousConnectionError(
                    f"etcd at {link.endpoint} has failed to answer {name}: {error}",
                    names_store=True,
                ) from error
            raise
        self._reconnects.note_answer()
        self.call_timeout = max(_TIMEOUT_DECAY * self.call_timeout, self.answer_timeout)
        return answers

    def refusal(self, operation: str, error: CallError) -> RendezvousError:
        """Return the error for a request that etcd has rejected."""
        if error.code == "PERMISSION_DENIED":
            what = self._not_permitted("write")
        elif error.is_of_size:
            what = f"{error.details}; see etcd's --max-request-bytes"
        else:
            what = str(error)
        return EtcdAccessError(f"etcd at {self.options.endpoint} refuses {operation}: {what}")

    def give_up(self, link: Link) -> None:
        """Close a link that does not work, and continue with the next member."""
        with self._lock:
            if self._link is not link:
                return
            self._link = None
            self._next = (self._next + 1) % len(self.options.endpoints)
        link.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """End all calls and watches in progress; may be called twice."""
        with self._lock:
            self._is_closed = True
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise RendezvousConnectionError(
                f"the connection to etcd at {self.options.endpoint} is closed", names_store=True
            )

    # --- finding a member that works --------------------------------------------------------------

    def _find_member(self) -> Link:
        now = time.monotonic()
        if self._connecting_since is None:
            self._connecting_since = now
        limit = min(self.bounds.connect, self.options.connect_timeout)
        if not self._has_connected:
            left = self._connecting_since + self.options.connect_timeout - now - _MIN_ATTEMPT
            limit = min(limit, max(left, _MIN_ATTEMPT))
        deadline = now + limit
        count = len(self.options.endpoints)
        problems: list[EndpointProblem] = []
        for step in range(count):
            index = (self._next + step) % count
            endpoint = self.options.endpoints[index]
            share = (deadline - time.monotonic()) / (count - step)
            try:
                link = self._try_endpoint(endpoint, max(share, _MIN_ATTEMPT))
            except _EndpointError as error:
                problems.append(error.problem)
                continue
            if self._has_connected or step:
                self._reconnects.note(f"continuing with etcd at {endpoint}")
            self._check_version(link)
            self._next = index
            return link
        raise self._unreachable(problems, self._connecting_since)

    def _check_version(self, link: Link) -> None:
        """Warn of the first member whose version is outdated; ask each member once."""
        if self._has_warned_of_version or link.endpoint in self._checked:
            return
        self._checked.add(link.endpoint)
        try:
            request = self.protocol.message("StatusRequest")()
            (status,) = link.call("Maintenance", "Status", [request], _MIN_ATTEMPT)
        except CallError as error:
            _log.debug("the version of etcd at %s is unknown: %s", link.endpoint, error)
            return
        if is_outdated(status.version):
            self._has_warned_of_version = True
            _log.warning(
                "etcd at %s is version %s, which can crash when a client's read takes too long "
                "(etcd issues 14110 and 14891); upgrade it to at least %s",
                link.endpoint,
                status.version,
                describe_minimum(),
            )

    def _unreachable(self, problems: list[EndpointProblem], began: float) -> RendezvousError:
        timeout = self.options.connect_timeout
        what = "; ".join(dict.fromkeys(problem.text for problem in problems))
        where = f"etcd at {self.options.endpoint}"
        if not self._has_connected:
            if all(problem.is_final for problem in problems):
                return EtcdAccessError(f"{where} cannot be used: {what}")
            if time.monotonic() - began >= timeout - _MIN_ATTEMPT:
                return EtcdAccessError(
                    f"{where} could not be reached within {timeout:g} s (--rdzv-conf "
                    f"connect_timeout): {what}. This machine is {os.uname().nodename!r}"
                )
        return RendezvousConnectionError(f"{where} cannot be reached: {what}", names_store=True)

    def _try_endpoint(self, endpoint: Endpoint, timeout: float) -> Link:
        """Return a link to the first address of a member that accepts requests."""
        deadline = time.monotonic() + timeout
        try:
            if self._credentials is None:
                self._credentials = create_credentials(self.protocol, self.options.security)
            addresses = resolve_host(endpoint.host, endpoint.port, timeout)
        except OSError as error:
            text = f"a certificate file cannot be read: {error.strerror or error}"
            raise _EndpointError(EndpointProblem(text, is_final=True)) from error
        except RendezvousConnectionError as error:
            raise _EndpointError(EndpointProblem(str(error))) from error
        problem = EndpointProblem(f"host {endpoint.host!r} has no address here")
        for left, address in _shares(addresses, deadline):
            link = Link(self.protocol, endpoint, address, self.options.security, self._credentials)
            try:
                request = self.protocol.message("RangeRequest")(key=self._probe, count_only=True)
                link.call("KV", "Range", [request], max(left, _MIN_ATTEMPT))
            except CallError as error:
                link.close()
                problem = self._explain(error, endpoint, address)
                continue
            except BaseException:
                link.close()
                raise
            return link
        raise _EndpointError(problem)

    def _explain(  # noqa: PLR0911 - a list of cases
        self, error: CallError, endpoint: Endpoint, address: SocketAddress
    ) -> EndpointProblem:
        user = self.options.security.user
        if error.is_of_login and not user:
            return EndpointProblem(
                f"{endpoint} wants a user and a password; give --rdzv-conf etcd_user, and the "
                "password in PLAUNCH_ETCD_PASSWORD or --rdzv-conf etcd_password_file",
                is_final=True,
            )
        if "authentication failed" in error.details:
            return EndpointProblem(
                f"{endpoint} does not know user {user!r} with this password; check etcd_user and "
                "etcd_password_file, or PLAUNCH_ETCD_PASSWORD",
                is_final=True,
            )
        if error.code == "PERMISSION_DENIED":
            return EndpointProblem(f"{endpoint} {self._not_permitted('read')}", is_final=True)
        if self._has_connected:
            return EndpointProblem(f"{endpoint}: {error}")  # it is known to be an etcd
        if error.code == "DEADLINE_EXCEEDED":
            return diagnose(endpoint, address, self.options.security, _MIN_ATTEMPT)
        if not error.is_of_link and error.code != "UNIMPLEMENTED":
            return EndpointProblem(f"{endpoint} refuses requests: {error}")
        if error.details.startswith("etcdserver:"):
            return EndpointProblem(f"{endpoint}: {error.details}")
        timeout = min(_DIAGNOSIS, self.options.connect_timeout / 2)
        return diagnose(endpoint, address, self.options.security, timeout)

    def _not_permitted(self, what: str) -> str:
        prefix, user = self.options.prefix, self.options.security.user
        return (
            f"does not let user {user!r} {what} keys below {prefix}/; grant a role of that user "
            f"`readwrite --prefix {prefix}/`, or choose another prefix with --rdzv-conf etcd_prefix"
        )


class _EndpointError(Exception):
    """An endpoint does not work."""

    def __init__(self, problem: EndpointProblem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def _shares(
    addresses: tuple[SocketAddress, ...], deadline: float
) -> Iterator[tuple[float, SocketAddress]]:
    """Yield each address with its share of the remaining time."""
    for index, address in enumerate(addresses):
        yield (deadline - time.monotonic()) / (len(addresses) - index), address
