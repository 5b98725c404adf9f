"""The entry-point groups in which plugins are found; importing this costs nothing."""

from __future__ import annotations

RENDEZVOUS = "plaunch.rendezvous"
EVENT_HANDLERS = "plaunch.event_handlers"
DEVICE_COUNTS = "plaunch.device_counts"
SIGNAL_POLICIES = "plaunch.signal_policies"
SCHEDULERS = "plaunch.schedulers"
PLUGINS = "plaunch.plugins"
OPTIONS = "plaunch.options"
TORCHRUN_HANDLERS = "torchrun.handlers"
TORCHRUN_LOGS_SPECS = "torchrun.logs_specs"

GROUPS = frozenset(
    {
        RENDEZVOUS,
        EVENT_HANDLERS,
        DEVICE_COUNTS,
        SIGNAL_POLICIES,
        SCHEDULERS,
        PLUGINS,
        OPTIONS,
        TORCHRUN_HANDLERS,
        TORCHRUN_LOGS_SPECS,
    }
)

# In `-p KIND:NAME`, and in the list of plugins: those that only implement hooks, and those with
# options of their own.
LIFECYCLE_KIND = "plugin"
OPTIONS_KIND = "options"

FIRST_PARTY = "plaunch"  # the distribution of what comes with plaunch
