"""A plugin manager for unit tests of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.plugin.guard import DEFAULT_LIMITS, CallLimits
from plaunch.plugin.manager import PluginManager

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def plugin_manager(
    *plugins: object,
    words: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    limits: CallLimits = DEFAULT_LIMITS,
) -> PluginManager:
    """Create a fresh manager that sees plaunch's own plugins and the given ones, nothing else.

    Other installed plugins and the environment of the test run have no influence, and nothing must
    be unregistered.

    Args:
        plugins: the plugins under test: modules, objects or classes with hooks.
        words: words as `-p` takes them.
        environ: the environment variables to see; none by default.
        limits: how long to wait for code of plugins.

    Raises:
        PluginLoadError: a plugin cannot be used.
    """
    return PluginManager.create(
        plugins,
        words=words,
        environ={} if environ is None else environ,
        first_party_only=True,
        limits=limits,
    )
