"""The `static` rendezvous backend: ranks from the command line, or one node on loopback."""

from plaunch_rendezvous_static.handler import SingleNodeRendezvous as SingleNodeRendezvous
from plaunch_rendezvous_static.handler import StaticRendezvous as StaticRendezvous
from plaunch_rendezvous_static.handler import create_static_handler as create_static_handler
