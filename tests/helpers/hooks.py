"""Plugins in code, made of the functions that a test has."""

from __future__ import annotations

from plaunch.plugin import PluginContext, hookimpl

# Without plaunch's own plugins that are in every launch.
NO_OTHERS = ("no:control",)


def plugin_of(name="Plugin", **hooks):
    """A plugin called `name` whose hooks are these functions, which take no `self`."""
    marked = {hook: staticmethod(hookimpl(function)) for hook, function in hooks.items()}
    return type(name, (), marked)()


def context_of(**settings):
    """What a plugin is told of a launch with these settings."""
    return PluginContext("job", "trainer", "node7", settings=settings)
