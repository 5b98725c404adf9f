"""ssh servers on loopback addresses: node1 is 127.0.0.2, and so on.

The servers have their own keys and settings, all in the folder, and accept only this user with the
key that is there. The folder is also the home of what they run, so that no profile of the user
slows it down. The system's server and the user's own settings are not touched. Without `run`:

    plaunch --on=ssh:@FOLDER/hosts --ssh-command="ssh -F FOLDER/config" train.py
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from processes import (
    VARIABLE,
    ClusterError,
    CommandContext,
    children_of,
    kill_all,
    marked,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NODE = "node{}"
ON = "--on=ssh:{nodes}"
PACKAGES = ("openssh-server", "openssh-client", "zsh", "fish", "tcsh")  # shells for tests
EXTRAS = ()
START_LIMIT = 20.0  # seconds for all servers

SERVER = """\
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 200
SetEnv HOME={folder} {variable}={folder}/{name}
PrintMotd no
LogLevel ERROR
"""
CLIENT = """\
Host {name}
    HostName {address}
    Port {port}

"""
ALL = """\
Host *
    User {user}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
"""


def find_missing() -> str:
    """Return what this machine lacks; empty if nothing."""
    if _find_server() is None:
        return "sshd is not installed"
    return "" if shutil.which("ssh") else "ssh is not installed"


def _find_server() -> str | None:
    """Return the path of sshd, which is seldom in PATH."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def start(folder: Path, nodes: Sequence[str]) -> None:
    """Start the servers, and write the files that clients need."""
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd of root requires it
    for name in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    known, settings = "", ""
    ports = {}
    for number, name in enumerate(nodes, 1):
        address = f"127.0.0.{number + 1}"
        ports[address] = port = _free_port(address)
        known += f"[{address}]:{port} {key}\n"
        settings += CLIENT.format(name=name, address=address, port=port)
        _start_server(folder, name, address, port)
    (folder / "known_hosts").write_text(known)
    (folder / "config").write_text(settings + ALL.format(user=getpass.getuser(), folder=folder))
    (folder / "hosts").write_text("".join(f"{name}\n" for name in nodes))
    _write_wrapper(folder)
    until = time.monotonic() + START_LIMIT
    for address, port in ports.items():
        _wait_for_server(address, port, until)


def _start_server(folder: Path, name: str, address: str, port: int) -> None:
    file = folder / f"{name}.sshd"
    file.write_text(
        SERVER.format(address=address, port=port, folder=folder, name=name, variable=VARIABLE)
    )
    server = subprocess.Popen(
        [str(_find_server()), "-D", "-e", "-f", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(folder / f"{name}.log").open("wb"),
        start_new_session=True,
    )
    (folder / f"{name}.pid").write_text(str(server.pid))


def _write_wrapper(folder: Path) -> None:
    """Write an `ssh` that knows the servers, for `run`."""
    wrapper = folder / "bin/ssh"
    wrapper.parent.mkdir()
    settings = shlex.quote(f"{folder}/config")
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {settings} "$@"\n')
    wrapper.chmod(0o755)


def _free_port(address: str) -> int:
    """Return a port of an address at which no program listens."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _wait_for_server(address: str, port: int, until: float) -> None:
    """Wait until a server greets."""
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1) as peer:
            if peer.recv(4) == b"SSH-":
                return
        time.sleep(0.01)
    raise ClusterError(f"no ssh server at {address}:{port} within {START_LIMIT:g} s")


def enter(folder: Path) -> CommandContext:
    """Return how a command runs in the cluster."""
    return CommandContext(path=[str(folder / "bin")])


def lose(folder: Path, node: str) -> None:
    """Kill the server of a node, its sessions, and all processes that were started in them."""
    kill_all(lambda: [*_servers(folder, node), *marked(folder, node)])


def stop(folder: Path) -> None:
    """Kill all servers and what runs on their nodes."""
    kill_all(lambda: [*_servers(folder, "*"), *marked(folder)])


def _servers(folder: Path, name: str) -> list[int]:
    """Return the processes of sshd, which has its own environment, and those below them."""
    found = []
    for file in folder.glob(f"{name}.pid"):
        pid = int(file.read_text())
        if any("sshd" in word for word in words_of(pid)):
            found += [pid, *_descendants(pid)]
    return found


def _descendants(pid: int) -> list[int]:
    below = children_of(pid)
    return below + [each for child in below for each in _descendants(child)]
