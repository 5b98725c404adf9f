"""The context that plugins get of a launch."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


@plain_dataclass
class PluginContext(Value):
    """The launch that a component is created for, or a hook is called in; fields may be added.

    Args:
        run_id: the id of the job.
        role: the role of this agent's workers.
        host: the name of this host.
        log_dir: the base log directory that the user gave, or None.
        settings: the fields of the launch's `LaunchConfig`, by name.
        options: the component's own options. Event handlers get texts by key; plugins with options
            their values by attribute; restart policies those of all options that their package
            declares; health checks the text after their name as `argument`.
        run_dir: the folder of this launch below `log_dir`, or None; for event handlers only.
    """

    run_id: str
    role: str
    host: str
    log_dir: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    run_dir: str | None = None
