"""Objects of torch's launcher, as callers may hold them, made into plaunch's."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from plaunch import LaunchConfig
from plaunch.errors import UsageError
from plaunch.process import LogsSpecs

from plaunch_torchrun.bridges import TorchLogsSpecs

_TIMEOUT = 900  # seconds; torch puts it among the options of every backend if nobody else does


def own_config(config: Any) -> LaunchConfig:
    """`config` as plaunch's; one of torch's is read by attribute, and stays as it is.

    The settings that a subclass adds are left out.

    Raises:
        UsageError: it is neither, or a value is out of its range.
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
        # Those backends of ours that want none would complain of what the user has not given.
        del options["timeout"]
    values["rdzv_configs"] = options
    return LaunchConfig(**values)


def own_logs_specs(specs: Any) -> LogsSpecs | None:
    """`specs` as plaunch's; an object of torch's class goes on deciding where streams go."""
    if specs is None or isinstance(specs, LogsSpecs):
        return specs
    if not callable(getattr(specs, "reify", None)):
        raise UsageError(f"{specs!r} is not a LogsSpecs")
    return TorchLogsSpecs(specs)
