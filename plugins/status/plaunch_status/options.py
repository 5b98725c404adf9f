"""The options of the status pages."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_status.plugin"
KNOWN_AS = "the status page"

OPTIONS = (
    Option(
        ("--metrics-port",),
        "serve /metrics, /healthz and /status of this launcher on this loopback port, or at this "
        "address (default: off)",
        metavar="[HOST:]PORT",
        is_shared=True,
    ),
    Option(
        ("--health-port",),
        "serve the same pages on this loopback port, for health checks; if the port is taken, "
        "plaunch only logs a warning (default: TORCHELASTIC_HEALTH_CHECK_PORT, else off)",
        metavar="PORT",
        variables=("TORCHELASTIC_HEALTH_CHECK_PORT",),
        is_shared=True,
    ),
)
