"""Addresses, ports, endpoints and lists of hosts; a server that slow clients cannot block.

A library for backends, the doctor, servers of pages and other plugins. Public names are imported on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_network.address import SocketAddress as SocketAddress
    from plaunch_network.address import find_local_address as find_local_address
    from plaunch_network.address import find_node_address as find_node_address
    from plaunch_network.address import interface_addresses as interface_addresses
    from plaunch_network.address import is_loop_back as is_loop_back
    from plaunch_network.address import is_own_address as is_own_address
    from plaunch_network.address import join_host_port as join_host_port
    from plaunch_network.address import names_this_machine as names_this_machine
    from plaunch_network.address import no_port_error as no_port_error
    from plaunch_network.address import parse_rendezvous_endpoint as parse_rendezvous_endpoint
    from plaunch_network.address import resolve_host as resolve_host
    from plaunch_network.connection_server import ConnectionServer as ConnectionServer
    from plaunch_network.hostlist import expand_hostlist as expand_hostlist
    from plaunch_network.ports import EVERYWHERE as EVERYWHERE
    from plaunch_network.ports import HeldPort as HeldPort
    from plaunch_network.ports import count_connections as count_connections
    from plaunch_network.ports import has_listener as has_listener
    from plaunch_network.ports import is_used_by as is_used_by
    from plaunch_network.ports import listen_at_first as listen_at_first
    from plaunch_network.ports import numeric_place as numeric_place
    from plaunch_network.ports import open_listener as open_listener
    from plaunch_network.ports import port_owner as port_owner
    from plaunch_network.torch_store import create_tcp_store as create_tcp_store

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".address": (
            "SocketAddress find_local_address find_node_address interface_addresses is_loop_back "
            "is_own_address join_host_port names_this_machine no_port_error "
            "parse_rendezvous_endpoint resolve_host"
        ),
        ".connection_server": "ConnectionServer",
        ".hostlist": "expand_hostlist",
        ".ports": (
            "EVERYWHERE HeldPort count_connections has_listener listen_at_first numeric_place "
            "is_used_by open_listener port_owner"
        ),
        ".torch_store": "create_tcp_store",
    },
)
