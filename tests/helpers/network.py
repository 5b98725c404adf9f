"""Networks of namespaces on this machine, with links that can be cut."""

from __future__ import annotations

import secrets
import subprocess


def ip(*words: str) -> None:
    """Run a program."""
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Network:
    """Nodes, which are namespaces, on switches; a cable leads from each node to each switch.

    The interfaces of a node are called `eth0` and so on, one for each switch. This machine is at
    each switch as well.
    """

    HERE = 254  # of the addresses; those of nodes begin with 1

    def __init__(self, nodes: int, switches: int = 1) -> None:
        self._id = secrets.token_hex(3)
        self._nodes, self._switches = range(nodes), range(switches)

    def within(self, node: int) -> tuple[str, ...]:
        """Return the command prefix that runs a program on a node."""
        return ("ip", "netns", "exec", self._namespace(node))

    def address(self, node: int, switch: int = 0) -> str:
        """Return a node's address at a switch."""
        return self._address(switch, node + 1)

    def own_address(self, switch: int = 0) -> str:
        """Return this machine's address at a switch."""
        return self._address(switch, self.HERE)

    def cut(self, node: int, switch: int = 0) -> None:
        """Cut a link silently."""
        ip("link", "set", self._cable(node, switch), "down")

    def mend(self, node: int, switch: int = 0) -> None:
        """Restore a link."""
        ip("link", "set", self._cable(node, switch), "up")

    def build(self) -> None:
        """Create the network."""
        for node in self._nodes:
            ip("netns", "add", self._namespace(node))
            ip("-n", self._namespace(node), "link", "set", "lo", "up")
        for switch in self._switches:
            name = self._switch(switch)
            ip("link", "add", name, "type", "bridge")
            ip("addr", "add", f"{self.own_address(switch)}/24", "dev", name)
            ip("link", "set", name, "up")
            for node in self._nodes:
                self._connect(node, switch)

    def remove(self) -> None:
        """Remove the existing parts of the network."""
        cables = [(node, switch) for node in self._nodes for switch in self._switches]
        for words in (
            *(("link", "del", self._cable(*ends)) for ends in cables),
            *(("netns", "del", self._namespace(node)) for node in self._nodes),
            *(("link", "del", self._switch(switch)) for switch in self._switches),
        ):
            subprocess.run(["ip", *words], check=False, capture_output=True, timeout=20)

    def _connect(self, node: int, switch: int) -> None:
        space, cable, device = self._namespace(node), self._cable(node, switch), f"eth{switch}"
        ip("link", "add", cable, "type", "veth", "peer", "name", device, "netns", space)
        ip("link", "set", cable, "master", self._switch(switch), "up")
        ip("-n", space, "addr", "add", f"{self.address(node, switch)}/24", "dev", device)
        ip("-n", space, "link", "set", device, "up")

    def _address(self, switch: int, number: int) -> str:
        # There may also be a network of a killed run.
        return f"10.{111 + switch}.{int(self._id[:2], 16)}.{number}"

    def _namespace(self, node: int) -> str:
        return f"plaunch-{self._id}-{node}"

    def _switch(self, switch: int) -> str:
        return f"plb{self._id}{switch}"

    def _cable(self, node: int, switch: int) -> str:
        return f"plv{self._id}{node}{switch}"
