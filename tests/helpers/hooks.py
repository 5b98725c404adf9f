"""Plugins in code, made from functions."""

from __future__ import annotations

from plaunch.plugin import PluginContext, hookimpl

# Without plaunch's own lifecycle plugins.
NO_OTHERS = ("no:control",)


def plugin_of(name="Plugin", **hooks):
    """Return a plugin named `name` whose hooks are these functions, without `self`."""
    marked = {hook: staticmethod(hookimpl(function)) for hook, function in hooks.items()}
    return type(name, (), marked)()


def context_of(**settings):
    """Return the plugin context of a launch with these settings."""
    return PluginContext("job", "trainer", "node7", settings=settings)
