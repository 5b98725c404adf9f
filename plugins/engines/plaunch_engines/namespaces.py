"""Network namespaces of this machine, one for each node, connected by a switch.

No namespace has a name. Each exists as long as a process in it: one that ends with the standard
input that this process holds, or an agent. So nothing is left if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROGRAMS = ("ip", "nsenter", "unshare")
_NETWORK = "10.231"  # a /16 that only exists inside of the namespaces
_TIMEOUT = 10.0  # seconds for each program


class PrivateNetwork:
    """A switch, and a namespace for each node that is added.

    Raises:
        UsageError: this user may not create namespaces, or a program is missing.
    """

    def __init__(self) -> None:
        missing = [name for name in _PROGRAMS if shutil.which(name) is None]
        if missing or os.geteuid() != 0:
            why = f"there is no program {missing[0]}" if missing else "this user is not root"
            raise UsageError(
                f"--local-network=namespaces: {why}; leave it out to let the nodes meet on loopback"
            )
        self._holders: list[subprocess.Popen[bytes]] = []
        self._switch = self._hold()
        self._run_in(self._switch, "ip", "link", "add", "switch", "type", "bridge")
        self._run_in(self._switch, "ip", "link", "set", "switch", "up")

    def add(self, index: int) -> tuple[list[str], str]:
        """Create the namespace of a node.

        Returns:
            The words in front of a command that let it run there, and the address of the node.
        """
        node, port = self._hold(), f"node{index}"
        address = f"{_NETWORK}.{index // 250}.{index % 250 + 1}"
        # The two ends are created where they belong.
        self._run(
            *("ip", "link", "add", "eth0", "netns", str(node), "type", "veth"),
            *("peer", "name", port, "netns", str(self._switch)),
        )
        self._run_in(self._switch, "ip", "link", "set", port, "master", "switch", "up")
        self._run_in(node, "ip", "address", "add", f"{address}/16", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._run_in(node, "ip", "link", "set", device, "up")
        return ["nsenter", f"--net=/proc/{node}/ns/net", "--"], address

    def close(self) -> None:
        """End the processes that hold the namespaces; may be called again."""
        for holder in self._holders:
            if holder.stdin is not None:
                holder.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                holder.wait(_TIMEOUT)
        self._holders.clear()

    def _hold(self) -> int:
        """Create a namespace; return the process id of what holds it."""
        holder = subprocess.Popen(
            ["unshare", "--net", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._holders.append(holder)
        # The answer of `cat` shows that `unshare` has become it.
        if holder.stdin is None or holder.stdout is None:
            raise RuntimeError("a process was started without pipes")
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.write(b"\n")
            holder.stdin.flush()
        with holder.stdout:
            if not holder.stdout.readline():
                raise UsageError(
                    "--local-network=namespaces: the system does not create a network namespace; "
                    "leave it out to let the nodes meet on loopback"
                )
        return holder.pid

    def _run_in(self, pid: int, *command: str) -> None:
        self._run("nsenter", f"--net=/proc/{pid}/ns/net", "--", *command)

    def _run(self, *command: str) -> None:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            detail: Sequence[str] = str(getattr(error, "stderr", "") or error).splitlines()
            raise UsageError(
                f"--local-network=namespaces: {' '.join(command)} failed: {detail[-1]}"
            ) from error
