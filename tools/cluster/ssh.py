"""Several ssh servers on loopback addresses, to try the engine `ssh` on one machine.

    python tools/cluster/ssh.py start FOLDER [--hosts N]
    plaunch --on=ssh:@FOLDER/hosts --ssh-command="ssh -F FOLDER/config" hello.py
    python tools/cluster/ssh.py stop FOLDER [--host node2]

Host node1 is the address 127.0.0.2, and so on. The servers have their own keys and settings, all in
FOLDER, and accept only this user with the key that is there. FOLDER is also the home of what they
run, so that no profile of the user slows it down. The system's server and the user's own settings
are not touched. The programs come from Debian's openssh-server.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

START_LIMIT = 20.0  # seconds for all servers
MAX_HOSTS = 250

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
SetEnv HOME={folder}
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


def find_server() -> str | None:
    """Return the path of sshd, which is seldom in PATH; None if it is not installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def start(folder: Path, count: int) -> None:
    """Start the servers, and write the files that clients need."""
    sshd = find_server()
    if sshd is None:
        sys.exit("sshd is not installed: apt-get install openssh-server")
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
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
    known, settings, names, pids = "", "", [], []
    ports = {}
    for number in range(1, count + 1):
        name, address = f"node{number}", f"127.0.0.{number + 1}"
        ports[address] = port = free_port(address)
        known += f"[{address}]:{port} {key}\n"
        settings += CLIENT.format(name=name, address=address, port=port)
        names.append(name)
        file = folder / f"{name}.sshd"
        file.write_text(SERVER.format(address=address, port=port, folder=folder))
        pids.append(
            subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(folder / f"{name}.log").open("wb"),
                start_new_session=True,
            ).pid
        )
    (folder / "known_hosts").write_text(known)
    (folder / "config").write_text(settings + ALL.format(user=getpass.getuser(), folder=folder))
    (folder / "hosts").write_text("".join(f"{name}\n" for name in names))
    for name, pid in zip(names, pids, strict=True):
        (folder / f"{name}.pid").write_text(str(pid))
    until = time.monotonic() + START_LIMIT
    for address, port in ports.items():
        wait_for_server(address, port, until)


def free_port(address: str) -> int:
    """Return a port of an address at which no program listens."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def wait_for_server(address: str, port: int, until: float) -> None:
    """Wait until a server greets; exit with a message if it does not."""
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1) as peer:
            if peer.recv(4) == b"SSH-":
                return
        time.sleep(0.01)
    sys.exit(f"no ssh server at {address}:{port} within {START_LIMIT:g} s")


def stop(folder: Path, name: str | None) -> None:
    """Kill all servers, or that of one host, with all that runs below them."""
    for file in folder.glob(f"{name or '*'}.pid"):
        pid = int(file.read_text())
        below = descendants(pid)
        if b"sshd" in command_of(pid):
            for each in (pid, *below):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        file.unlink()


def descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def command_of(pid: int) -> bytes:
    """Return the command line of a process; empty if there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("start", help="start the servers")
    starting.add_argument("folder", type=Path)
    starting.add_argument("--hosts", type=int, default=3, choices=range(1, MAX_HOSTS), metavar="N")
    stopping = commands.add_parser("stop", help="kill them, with their sessions")
    stopping.add_argument("folder", type=Path)
    stopping.add_argument("--host", metavar="NAME", help="only this one (default: all)")
    args = parser.parse_args()
    if args.command == "start":
        start(args.folder, args.hosts)
    else:
        stop(args.folder, args.host)


if __name__ == "__main__":
    main()
