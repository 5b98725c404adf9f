"""Diagnoses why an endpoint is not a usable etcd, and what to check.

grpc's own errors are about sockets and handshakes. So the endpoint is queried again over plain
HTTP. This only explains a failure.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.texts import printable

if TYPE_CHECKING:
    from plaunch_network import SocketAddress

    from plaunch_rendezvous_etcd.options import Endpoint, Security

_MAX_VERSION = 40  # characters
_MAX_ANSWER = 65536  # bytes of an answer
_PROBE_TIMEOUT = 1.0  # seconds
_VERSION_REQUEST = "GET /version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class EndpointProblem:
    """Why an endpoint cannot be used.

    Args:
        text: the problem, and what to check.
        is_final: whether a retry cannot help.
    """

    text: str
    is_final: bool = False


def diagnose(
    endpoint: Endpoint, address: SocketAddress, security: Security, timeout: float
) -> EndpointProblem:
    """Query `address`; each step takes at most `timeout` seconds."""
    try:
        sock = _connect(address, timeout)
    except TimeoutError:
        return EndpointProblem(
            f"{address} does not answer within {timeout:.1f} s; check the address, and firewalls "
            "on the way"
        )
    except OSError as error:
        return EndpointProblem(
            f"{address}: {error.strerror or error}; check that etcd runs and listens there"
        )
    with sock:
        if security.is_on:
            return _request_encrypted(sock, endpoint, address, security)
        return _request(sock, endpoint, address, security)


def _request_encrypted(  # noqa: PLR0911 - a list of cases
    sock: socket.socket, endpoint: Endpoint, address: SocketAddress, security: Security
) -> EndpointProblem:
    import ssl  # heavy, and for failures only

    try:
        context = ssl.create_default_context(cafile=security.ca or None)
        # Python is stricter from 3.13 on, and would reject certificates that grpc accepts.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if security.cert:
            context.load_cert_chain(security.cert, security.key)
    except (ssl.SSLError, OSError) as error:
        return EndpointProblem(
            f"the certificate files cannot be used: {_reason(error)}; check ca_cert, ssl_cert and "
            "ssl_cert_key",
            is_final=True,
        )
    try:
        with context.wrap_socket(sock, server_hostname=endpoint.host) as encrypted:
            return _request(encrypted, endpoint, address, security)
    except ssl.SSLCertVerificationError as error:
        return EndpointProblem(
            f"the certificate of {endpoint} is not accepted: {error.verify_message}; check that "
            f"ca_cert ({security.ca or 'none was given'}) has signed it, and that it is for "
            f"{endpoint.host!r}",
            is_final=True,
        )
    except ssl.SSLError as error:
        if _speaks_plain_text(address):
            return EndpointProblem(
                f"{address} does not speak TLS; check --rdzv-conf protocol=https, and that it is "
                "the port for clients",
                is_final=True,
            )
        return EndpointProblem(_refused(address, security, _reason(error)), is_final=True)
    except TimeoutError:
        return EndpointProblem(_silent(address))
    except OSError as error:
        return EndpointProblem(
            f"{address} has ended the TLS handshake: {error.strerror or error}; check that it is "
            "etcd's port for clients"
        )


def _refused(address: SocketAddress, security: Security, reason: str) -> str:
    own = "ssl_cert and ssl_cert_key" if security.cert else "whether it wants a client certificate"
    return f"{address} has refused the TLS handshake: {reason}; check {own}"


def _request(
    sock: socket.socket, endpoint: Endpoint, address: SocketAddress, security: Security
) -> EndpointProblem:
    answer = b""
    timeout = sock.gettimeout() or _PROBE_TIMEOUT
    deadline = time.monotonic() + timeout
    try:
        sock.sendall(_VERSION_REQUEST.format(host=endpoint).encode())
        while len(answer) < _MAX_ANSWER:
            # A limit for the whole answer, because a server may send it byte by byte.
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            part = sock.recv(4096)
            if not part:
                break
            answer += part
    except TimeoutError:
        if not answer:
            return EndpointProblem(_silent(address))
        if b"}" not in answer:
            return EndpointProblem(
                f"{address} has not completed its answer within {timeout:.1f} s; it began with "
                f"{answer[:80].decode('latin-1')!r}; check that it is etcd's port for clients"
            )
    except OSError as error:
        # With TLS 1.3, a server rejects a client certificate only now.
        if security.is_on and not answer:
            return EndpointProblem(_refused(address, security, _reason(error)), is_final=True)
    return _read_answer(answer, endpoint, address, security)


def _read_answer(
    answer: bytes, endpoint: Endpoint, address: SocketAddress, security: Security
) -> EndpointProblem:
    head, _, body = answer.partition(b"\r\n\r\n")
    text = head.decode("latin-1")
    if not security.is_on and not text.startswith("HTTP/1.1 200") and _speaks_tls(address):
        return EndpointProblem(
            f"{endpoint} speaks TLS only; add --rdzv-conf protocol=https", is_final=True
        )
    try:
        fields = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])
        version = printable(str(fields["etcdserver"]), _MAX_VERSION)
    except (ValueError, KeyError, TypeError, RecursionError):
        version = ""
    if version.startswith(("0.", "1.", "2.")):
        return EndpointProblem(
            f"{endpoint} is etcd {version}, which has the v2 API only; version 3 is needed",
            is_final=True,
        )
    if version:
        return EndpointProblem(
            f"{endpoint} is etcd {version}, but does not take requests; it may have no leader: "
            "check `etcdctl endpoint health --cluster`"
        )
    if not answer:
        return EndpointProblem(
            f"{address} closes connections without an answer; check that it is etcd's port for "
            "clients"
        )
    first = text.splitlines()[0][:80] if text else ""
    return EndpointProblem(
        f"{address} is not etcd: it answers {first!r}; check host and port", is_final=True
    )


def _connect(address: SocketAddress, timeout: float) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(address.sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def _speaks_plain_text(address: SocketAddress) -> bool:
    """Whether an HTTP server without TLS answers."""
    try:
        with _connect(address, _PROBE_TIMEOUT) as sock:
            sock.sendall(_VERSION_REQUEST.format(host=address).encode())
            return sock.recv(16).startswith(b"HTTP/1.")
    except OSError:
        return False


def _speaks_tls(address: SocketAddress) -> bool:
    """Whether a server speaks TLS, etcd or not."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent to it
    try:
        with _connect(address, _PROBE_TIMEOUT) as sock, context.wrap_socket(sock):
            return True
    except OSError:
        return False


def _silent(address: SocketAddress) -> str:
    return (
        f"{address} takes connections but does not answer: it is stopped, or it is not etcd; "
        "check that it is etcd's port for clients"
    )


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
