"""What is known of a plugin once it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from plaunch.plugin.registry import ALL_KINDS, LIFECYCLE
from plaunch.values import Value

if TYPE_CHECKING:
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.entry_points import Distribution

_LABELS = {kind.name: kind.label for kind in ALL_KINDS}


@dataclass(eq=False, repr=False)
class LoadedPlugin(Value):
    """A plugin of this launch, and where it comes from.

    `distribution` and `version` are empty for plugins that were passed in code or are modules
    named with `-p`; `module` is the module that was imported, or that defines the object.
    """

    kind: str
    name: str
    distribution: str
    version: str
    module: str

    @property
    def origin(self) -> str:
        """Its distribution and version, if it was installed; its module."""
        if not self.distribution:
            return f"module {self.module}"
        release = f"{self.distribution} {self.version}".rstrip()
        return f"distribution {release}, module {self.module}"

    @property
    def who(self) -> str:
        """How messages call it: its kind and name, and where it comes from."""
        return f"{_LABELS.get(self.kind, LIFECYCLE.label)} {self.name!r} ({self.origin})"


@dataclass(eq=False)
class Registration:
    """A plugin that is registered with pluggy.

    Args:
        name: under which pluggy knows it.
        plugin: the object that has its hooks.
        source: where it comes from.
        distribution: the distribution that it belongs to; None if it was not installed.
        offers: what it offers, by kind, once it has been asked.
        options: the values of its own options, if one of them is given.
    """

    name: str
    plugin: object
    source: LoadedPlugin
    distribution: Distribution | None
    offers: dict[str, dict[str, object]] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """How messages call it."""
        return self.source.who

    @property
    def is_ours(self) -> bool:
        """Whether it comes with plaunch."""
        return self.distribution is not None and self.distribution.is_ours

    def context(self, launch: PluginContext) -> PluginContext:
        """A launch as it is given it, with its own options."""
        return replace(launch, options=self.options)
