"""Which endpoints parse_rendezvous_endpoint refuses, and what it makes of the others."""

from api import rendezvous, show

ENDPOINTS = (
    "",
    "  ",
    "host",
    "host:29400",
    " host:1 ",
    "my-host.example.org:2",
    "my_host:3",
    "10.0.0.1",
    "10.0.0.1:65535",
    "[::1]",
    "[::1]:29400",
    "[fe80::1:2]:3",
    "[host]:4",
    "tcp://localhost:0",
    "http://host:2379",
    "http://",
    "~:123",
    ":29400",
    ":",
    "host:",
    "host:port",
    "host:-1",
    "host:1.5",
    "host:99999",
    "host:65536",
    "host 1:2",
    "host,other:3",
    "a/b:4",
    "host:2 3",
    "[::1",
    "[::1]2",
    "[]",
    "[]:5",
    "user@host:6",
    "host:6?",
    "host:port:port",
    "$HOST:7",
    "*:8",
)


def parsed(endpoint):
    try:
        return list(rendezvous.parse_rendezvous_endpoint(endpoint, 29))
    except ValueError:
        return "ValueError"


show(**{f"of {endpoint!r}": parsed(endpoint) for endpoint in ENDPOINTS})
show(
    **{
        f"also {endpoint!r}": parsed(endpoint)
        for endpoint in ("::1", "fe80::1", "host:1:2", "fe80::1%eth0", "[fe80::1%eth0]:3", "a:b:c")
    }
)
