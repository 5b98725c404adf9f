"""A connection to one member of etcd: calls with timeouts, and a login that is renewed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.texts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_network import SocketAddress

    from plaunch_rendezvous_etcd.options import Endpoint, Security
    from plaunch_rendezvous_etcd.protocol import Protocol

_OPTIONS = (
    # Two links must not share a socket, or a new link would get a dead one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A silent peer ends open watches after 13 s; etcd closes connections with intervals below 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.enable_retries", 0),
    # The thread that reads a stream also receives it. Otherwise grpc starts another thread that
    # polls five times per second.
    ("SingleThreadedUnaryStream", 1),
    # Without it, grpc sends a ping with each answer, to measure the bandwidth.
    ("grpc.http2.bdp_probe", 0),
)
_MAX_AT_ONCE = 128  # requests in flight
# A member that has lost the others then returns an error instead of waiting.
_LEADER_ONLY = ("hasleader", "true")
_STALE_LOGIN = ("invalid auth token", "user name is empty", "auth store is old")
_NO_LOGIN = "authentication is not enabled"


class CallError(Exception):
    """A failed call.

    Args:
        code: grpc's name of the status, such as `UNAVAILABLE`.
        details: the message.
    """

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{details or 'no details'} ({code})")
        self.code = code
        self.details = details

    @property
    def is_of_login(self) -> bool:
        """Whether a new login may help."""
        return self.code == "UNAUTHENTICATED" or any(text in self.details for text in _STALE_LOGIN)

    @property
    def is_of_size(self) -> bool:
        """Whether the request exceeds this etcd's size limit."""
        return "too large" in self.details or "larger than max" in self.details

    @property
    def is_of_load(self) -> bool:
        """Whether etcd is overloaded, or out of space."""
        return self.code == "RESOURCE_EXHAUSTED" and not self.is_of_size

    @property
    def is_of_link(self) -> bool:
        """Whether another member, or another connection, may help."""
        return self.code in (
            "UNAVAILABLE",
            "DEADLINE_EXCEEDED",
            "CANCELLED",
            "INTERNAL",
            "UNKNOWN",
            "ABORTED",
        )


class Link:
    """A channel to one address of one member. Thread-safe.

    Args:
        protocol: etcd's protocol.
        endpoint: the member, as given by the user.
        address: its address.
        security: how members and clients authenticate.
        credentials: grpc's credentials, made from `security`; None for plain text.
    """

    def __init__(
        self,
        protocol: Protocol,
        endpoint: Endpoint,
        address: SocketAddress,
        security: Security,
        credentials: Any,
    ) -> None:
        self.endpoint = endpoint
        self._protocol = protocol
        self._security = security
        self._lock = threading.Lock()
        self._token = ""
        self._wants_login = bool(security.user)
        self._answered_at = time.monotonic()
        self._methods: dict[tuple[str, str, str], Any] = {}
        scheme = "ipv6" if ":" in address.host else "ipv4"
        target = f"{scheme}:{address}"
        options: list[tuple[str, object]] = list(_OPTIONS)
        if credentials is None:
            self._channel = protocol.grpc.insecure_channel(target, options=options)
        else:
            # The certificate is for the name that the user has given, not for its address.
            options.append(("grpc.ssl_target_name_override", endpoint.host))
            self._channel = protocol.grpc.secure_channel(target, credentials, options=options)

    def call(self, service: str, name: str, requests: Sequence[Any], timeout: float) -> list[Any]:
        """Send requests to one of etcd's procedures, all at once; return the answers in order.

        Logs in again if the login has expired.

        Raises:
            CallError: a request has failed, or has no answer after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        self._ensure_login(timeout)
        token = self._token
        try:
            return self._call_all(service, name, requests, deadline)
        except CallError as error:
            if not (error.is_of_login and self._security.user):
                raise
        self.login(token, deadline - time.monotonic())
        return self._call_all(service, name, requests, deadline)

    def login(self, stale: str, timeout: float) -> None:
        """Log in, unless another thread has replaced the token `stale`.

        Raises:
            CallError: etcd rejects the login, or does not answer.
        """
        with self._lock:
            if self._token != stale:
                return
            request = self._protocol.message("AuthenticateRequest")(
                name=self._security.user, password=self._security.password
            )
            self._token = ""
            try:
                answer = self._call("Auth", "Authenticate", request, timeout)
            except CallError as error:
                if _NO_LOGIN not in error.details:
                    raise
                self._wants_login = False
                return
            self._wants_login = True
            self._token = answer.token

    @property
    def is_logged_in(self) -> bool:
        """Whether there is a login; it may have expired."""
        return bool(self._token)

    def forget_login(self) -> None:
        """Forget the login, so that the next call logs in again."""
        self._token = ""

    def stream(self, service: str, name: str, request: Any, timeout: float) -> Any:
        """Start a stream of answers to one request; iterate over it, then call `end_stream`.

        grpc raises `RpcError` while it is read: `DEADLINE_EXCEEDED` after `timeout` seconds.

        Raises:
            CallError: the link is closed, or the login has failed or taken more than `timeout`
                seconds.
        """
        self._ensure_login(timeout)
        return self._start(service, name, request, timeout)

    def silent_for(self) -> float:
        """Seconds since the last answer, or since the link was opened."""
        return time.monotonic() - self._answered_at

    def close(self) -> None:
        """Close the link, which ends all calls. Thread-safe; may be called twice."""
        with contextlib.suppress(ValueError):
            self._channel.close()

    def _ensure_login(self, timeout: float) -> None:
        if self._wants_login and not self._token:
            self.login("", timeout)

    def _call_all(
        self, service: str, name: str, requests: Sequence[Any], deadline: float
    ) -> list[Any]:
        if len(requests) == 1:
            return [self._call(service, name, requests[0], deadline - time.monotonic())]
        return [
            answer
            for begin in range(0, len(requests), _MAX_AT_ONCE)
            for answer in self._call_at_once(
                service, name, requests[begin : begin + _MAX_AT_ONCE], deadline
            )
        ]

    def _call_at_once(
        self, service: str, name: str, requests: Sequence[Any], deadline: float
    ) -> list[Any]:
        """Send all requests before reading the first answer.

        Each is a stream with one answer, which looks the same on the wire: grpc starts a thread for
        futures, but none for streams.
        """
        streams: list[Any] = []
        try:
            for request in requests:
                streams.append(self._start(service, name, request, deadline - time.monotonic()))
            answers = [next(stream) for stream in streams]
            for stream in streams:
                next(stream, None)  # its status
        except self._protocol.grpc.RpcError as error:
            raise call_error(error) from None
        except StopIteration:
            raise CallError("INTERNAL", f"{name} was answered without a result") from None
        finally:
            for stream in streams:
                self._protocol.end_stream(stream)
        self._answered_at = time.monotonic()
        return answers

    def _start(self, service: str, name: str, request: Any, timeout: float) -> Any:
        try:
            return self._method(service, name, "unary_stream")(
                request, timeout=max(timeout, 0.001), metadata=self._metadata()
            )
        except ValueError as error:  # grpc raises this on a closed channel
            raise CallError("CANCELLED", str(error)) from error

    def _call(self, service: str, name: str, request: Any, timeout: float) -> Any:
        try:
            # Also for methods that etcd declares as streams: one request with one answer looks the
            # same on the wire.
            answer = self._method(service, name, "unary_unary")(
                request, timeout=max(timeout, 0.001), metadata=self._metadata()
            )
        except self._protocol.grpc.RpcError as error:
            raise call_error(error) from None
        except ValueError as error:
            raise CallError("CANCELLED", str(error)) from error
        self._answered_at = time.monotonic()
        return answer

    def _method(self, service: str, name: str, kind: str) -> Any:
        """Return a procedure as grpc's callable; `kind` is `unary_unary` or `unary_stream`."""
        found = self._methods.get((service, name, kind))
        if found is None:
            method = self._protocol.method(service, name)
            found = getattr(self._channel, kind)(method.path, method.encode, method.decode)
            self._methods[service, name, kind] = found
        return found

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        # Not as call credentials, which grpc rejects over plain text.
        return (_LEADER_ONLY, ("token", self._token)) if self._token else (_LEADER_ONLY,)


def call_error(error: Any) -> CallError:
    """Convert grpc's exception, without its stack and the request."""
    code = getattr(error.code(), "name", str(error.code()))
    return CallError(code, printable(" ".join(str(error.details() or "").split())))


def create_credentials(protocol: Protocol, security: Security) -> Any:
    """Return grpc's credentials for encrypted connections; None for plain text.

    Raises:
        OSError: a file cannot be read.
    """
    if not security.is_on:
        return None
    authorities = _read(security.ca) or _system_authorities()
    return protocol.grpc.ssl_channel_credentials(
        authorities, _read(security.key), _read(security.cert)
    )


def _read(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()


def _system_authorities() -> bytes | None:
    """Return the certificates that this machine trusts, as Python's ssl module does.

    Without them grpc would use its own list, which has no private authorities.
    """
    import ssl  # heavy, and rarely needed

    system = ssl.get_default_verify_paths()
    paths = [system.cafile] if system.cafile else []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(system.capath)) if system.capath else []
        # openssl reads links that are named by a hash: 4042bcee.0.
        paths += [os.path.join(system.capath, name) for name in names if name[-2:-1] == "."]
    found = []
    for path in paths:
        with contextlib.suppress(OSError):  # a dangling link
            found.append(_read(path) or b"")
    return b"\n".join(found) or None
