"""The options for etcd: endpoints, certificates, user, prefix, times."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.durations import Duration
from plaunch.errors import UsageError
from plaunch_network import join_host_port, no_port_error, parse_rendezvous_endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.rendezvous import RendezvousParameters

DEFAULT_PORT = 2379
USER_VARIABLE = "PLAUNCH_ETCD_USER"
PASSWORD_VARIABLE = "PLAUNCH_ETCD_PASSWORD"  # noqa: S105 - the name, not the secret

# torchrun's two etcd backends have different names for the same files, and different prefixes.
CA_OPTIONS = ("ca_cert", "cacert")
CERT_OPTIONS = ("ssl_cert", "cert")
KEY_OPTIONS = ("ssl_cert_key", "key")
PREFIXES = {"etcd": "/torchelastic/p2p"}
PREFIX = "/torch/elastic/rendezvous"
_PROTOCOLS = ("http", "https")
MIN_TTL = 60.0  # seconds; an etcd that was suspended for longer than a lease revokes it
_MAX_PASSWORD = 4096  # bytes

OPTIONS = (
    *CA_OPTIONS,
    *CERT_OPTIONS,
    *KEY_OPTIONS,
    "connect_timeout",
    "etcd_password_file",
    "etcd_prefix",
    "etcd_user",
    "job_ttl",
    "protocol",
    "read_timeout",
)

_log = logging.getLogger("plaunch")


@dataclass(frozen=True)
class Endpoint:
    """One member, as given by the user."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


@dataclass(frozen=True)
class Security:
    """How members and clients authenticate.

    Args:
        is_on: whether connections are encrypted.
        ca: path of the certificates of trusted authorities; the system's if empty.
        cert: path of the client certificate; empty if there is none.
        key: path of its key.
        user: etcd's user; empty without authentication.
        password: the password of that user.
    """

    is_on: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True)
class EtcdOptions:
    """All options.

    Args:
        endpoints: the members to try.
        security: how members and clients authenticate.
        prefix: the prefix of all keys, without a slash at its end.
        connect_timeout: the limit for the first connection, in seconds.
        read_timeout: seconds after which an unresponsive member is given up.
        job_ttl: seconds for which etcd keeps a job's keys after its last agent is gone.
    """

    endpoints: tuple[Endpoint, ...]
    security: Security = field(default_factory=Security)
    prefix: str = PREFIX
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    job_ttl: float = 7200.0

    @property
    def endpoint(self) -> str:
        """The endpoints, for messages."""
        return ",".join(map(str, self.endpoints))


def read_options(params: RendezvousParameters, environ: Mapping[str, str]) -> EtcdOptions:
    """Read and check the backend's own options.

    Raises:
        UsageError: an option is invalid, contradicts another one, or names an unreadable file.
    """
    schemes, endpoints = _read_endpoints(params.endpoint)
    security = _read_security(params, environ, schemes)
    prefix = params.get("etcd_prefix")
    prefix = PREFIXES.get(params.backend, PREFIX) if prefix is None else str(prefix)
    if not (prefix.isascii() and prefix.isprintable() and prefix.strip("/")) or " " in prefix:
        raise _bad(params, "etcd_prefix", prefix, "it is a path of printable ASCII, without spaces")
    return EtcdOptions(
        endpoints,
        security,
        prefix.rstrip("/"),
        connect_timeout=_read_seconds(params, "connect_timeout", 10.0),
        read_timeout=_read_seconds(params, "read_timeout", 60.0),
        job_ttl=_read_seconds(params, "job_ttl", 7200.0, least=MIN_TTL),
    )


def _read_endpoints(text: str) -> tuple[set[str], tuple[Endpoint, ...]]:
    """Return the given schemes, and the members, each once."""
    schemes, endpoints = set[str](), dict[Endpoint, None]()
    for part in (text or "localhost").split(","):
        scheme, separator, rest = part.strip().rpartition("://")
        if separator:
            schemes.add(scheme.lower())
        rest = rest.rstrip("/")
        if not rest:
            raise UsageError(
                f"endpoint {text!r} has an empty part; write host1:2379,host2:2379,host3:2379"
            )
        host, port = parse_rendezvous_endpoint(rest, DEFAULT_PORT)
        if port == 0:
            raise no_port_error(part, f"etcd's own is {DEFAULT_PORT}")
        endpoints[Endpoint(host, port)] = None
    return schemes, tuple(endpoints)


def _read_security(
    params: RendezvousParameters, environ: Mapping[str, str], schemes: set[str]
) -> Security:
    given = params.get("protocol")
    protocols = schemes if given is None else schemes | {str(given).lower()}
    if len(protocols) > 1:
        raise UsageError(
            f"the endpoint {params.endpoint!r} and option 'protocol' of rendezvous backend "
            f"{params.backend!r} do not agree: {', '.join(sorted(protocols))}; choose one"
        )
    protocol = next(iter(protocols), "http")
    if protocol not in _PROTOCOLS:
        raise _bad(params, "protocol", protocol, f"choose from {', '.join(_PROTOCOLS)}")
    names = {kind: _find(params, kind) for kind in (CA_OPTIONS, CERT_OPTIONS, KEY_OPTIONS)}
    ca, cert, key = names.values()
    is_on = protocol == "https"
    if not is_on and (ca or cert or key):
        option = next(kind[0] for kind, value in names.items() if value)
        raise UsageError(
            f"option {option!r} of rendezvous backend {params.backend!r} is for encrypted "
            "connections; add --rdzv-conf protocol=https"
        )
    if bool(cert) != bool(key):
        there, missing = (CERT_OPTIONS, KEY_OPTIONS) if cert else (KEY_OPTIONS, CERT_OPTIONS)
        raise UsageError(
            f"rendezvous backend {params.backend!r} has option {there[0]!r} without "
            f"{missing[0]!r}; give both (--rdzv-conf)"
        )
    for kind, path in names.items():
        if path:
            _read_file(params, kind[0], path)
    user, password = _read_user(params, environ)
    if user and not is_on:
        _log.warning(
            "the password of etcd's user %r is sent unencrypted; use --rdzv-conf protocol=https",
            user,
        )
    return Security(is_on, ca, cert, key, user, password)


def _find(params: RendezvousParameters, names: tuple[str, str]) -> str:
    """Return the value of an option that has two names."""
    values = {str(params.get(name)) for name in names if params.get(name) is not None}
    if len(values) > 1:
        raise UsageError(
            f"options {names[0]!r} and {names[1]!r} of rendezvous backend {params.backend!r} are "
            "the same, and have different values (--rdzv-conf)"
        )
    return values.pop() if values else ""


def _read_user(params: RendezvousParameters, environ: Mapping[str, str]) -> tuple[str, str]:
    user = str(params.get("etcd_user") or environ.get(USER_VARIABLE) or "")
    path = params.get("etcd_password_file")
    if path is not None:
        content = _read_file(params, "etcd_password_file", str(path), is_secret=True)
        try:
            password = content.decode().strip()
        except UnicodeDecodeError:
            raise UsageError(f"the password file {path!r} is not UTF-8 text") from None
        if not password or len(content) > _MAX_PASSWORD:
            size = "is empty" if not password else f"has more than {_MAX_PASSWORD} bytes"
            raise UsageError(f"the password file {path!r} (--rdzv-conf) {size}")
    else:
        password = environ.get(PASSWORD_VARIABLE, "")
    if user and not password:
        raise UsageError(
            f"etcd's user {user!r} has no password; give one in {PASSWORD_VARIABLE}, or in a file "
            "with --rdzv-conf etcd_password_file"
        )
    if password and not user:
        where = PASSWORD_VARIABLE if path is None else f"the file {path!r}"
        raise UsageError(
            f"a password for etcd is set in {where}, but no user; give one with --rdzv-conf "
            f"etcd_user, or in {USER_VARIABLE}"
        )
    return user, password


def _read_file(
    params: RendezvousParameters, option: str, path: str, *, is_secret: bool = False
) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(1 << 20)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"option {option!r} of rendezvous backend {params.backend!r} is {path!r}, which cannot "
            f"be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    if is_secret and stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning(
            "the password file %r is open to every user of this machine (mode %03o); remove the "
            "permission with chmod o-rw",
            path,
            stat.S_IMODE(mode),
        )
    return content


def _read_seconds(
    params: RendezvousParameters, option: str, default: float, *, least: float = 0.0
) -> float:
    return params.get_as_seconds(option, default, Duration(least=least)) or default


def _bad(params: RendezvousParameters, option: str, value: object, rule: str) -> UsageError:
    return UsageError(
        f"option {option!r} of rendezvous backend {params.backend!r} is {value!r}; {rule}"
    )
