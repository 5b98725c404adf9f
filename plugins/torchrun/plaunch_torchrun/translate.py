"""Converting objects of torch's launcher to plaunch's."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from plaunch import LaunchConfig
from plaunch.errors import UsageError
from plaunch.process import LogsSpecs

from plaunch_torchrun.bridges import TorchLogsSpecs

_TIMEOUT = 900  # seconds; torch adds this option for every backend by default


def own_config(config: Any) -> LaunchConfig:
    """Convert a config of torch to plaunch's; it is read by attribute and not changed.

    Settings that a subclass adds are ignored.

    Raises:
        UsageError: it is not a config, or a value is out of range.
    """
    if isinstance(config, LaunchConfig):
        if config.logs_specs is not None:
            config.logs_specs = own_logs_specs(config.logs_specs)
        return config
    if not hasattr(config, "nproc_per_node"):
        raise UsageError(f"{config!r} is not a LaunchConfig")
    known = {item.name for item in fields(LaunchConfig)}
    values = {name: getattr(config, name) for name in known if hasattr(config, name)}
    values["logs_specs"] = own_logs_specs(values.get("logs_specs"))
    options = dict(values.get("rdzv_configs") or {})
    if values.get("rdzv_timeout", -1) == -1 and options.get("timeout") == _TIMEOUT:
        # plaunch's backends without this option would refuse it, although the user did not give it.
        del options["timeout"]
    values["rdzv_configs"] = options
    return LaunchConfig(**values)


def own_logs_specs(specs: Any) -> LogsSpecs | None:
    """Convert a logs spec of torch to plaunch's, with an adapter."""
    if specs is None or isinstance(specs, LogsSpecs):
        return specs
    if not callable(getattr(specs, "reify", None)):
        raise UsageError(f"{specs!r} is not a LogsSpecs")
    return TorchLogsSpecs(specs)
