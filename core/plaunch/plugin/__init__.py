"""Plugins: how to write one, and how those of a launch are found, loaded and called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch._names import closest as closest
    from plaunch._names import did_you_mean as did_you_mean
    from plaunch._names import suggest as suggest
    from plaunch.errors import one_line as one_line
    from plaunch.plugin.context import PluginContext as PluginContext
    from plaunch.plugin.contributions import find_binder as find_binder
    from plaunch.plugin.contributions import find_starter as find_starter
    from plaunch.plugin.contributions import find_worker_env as find_worker_env
    from plaunch.plugin.contributions import find_worker_store as find_worker_store
    from plaunch.plugin.contributions import notify as notify
    from plaunch.plugin.extensions import create_extensions as create_extensions
    from plaunch.plugin.guard import CallLimits as CallLimits
    from plaunch.plugin.hooks import HookResult as HookResult
    from plaunch.plugin.hooks import Implementation as Implementation
    from plaunch.plugin.hooks import LoadedPlugin as LoadedPlugin
    from plaunch.plugin.hookspecs import hookimpl as hookimpl
    from plaunch.plugin.kinds import ALL_KINDS as ALL_KINDS
    from plaunch.plugin.kinds import DEVICE_COUNTS as DEVICE_COUNTS
    from plaunch.plugin.kinds import ENGINES as ENGINES
    from plaunch.plugin.kinds import EVENT_HANDLERS as EVENT_HANDLERS
    from plaunch.plugin.kinds import HEALTH_CHECKS as HEALTH_CHECKS
    from plaunch.plugin.kinds import KINDS as KINDS
    from plaunch.plugin.kinds import LIFECYCLE as LIFECYCLE
    from plaunch.plugin.kinds import LOGS_SPECS as LOGS_SPECS
    from plaunch.plugin.kinds import RENDEZVOUS as RENDEZVOUS
    from plaunch.plugin.kinds import RESTART_POLICIES as RESTART_POLICIES
    from plaunch.plugin.kinds import SCHEDULERS as SCHEDULERS
    from plaunch.plugin.kinds import SIGNAL_POLICIES as SIGNAL_POLICIES
    from plaunch.plugin.kinds import WITH_OPTIONS as WITH_OPTIONS
    from plaunch.plugin.kinds import DeviceCounter as DeviceCounter
    from plaunch.plugin.kinds import EngineFactory as EngineFactory
    from plaunch.plugin.kinds import EventHandlerFactory as EventHandlerFactory
    from plaunch.plugin.kinds import HealthCheckFactory as HealthCheckFactory
    from plaunch.plugin.kinds import Kind as Kind
    from plaunch.plugin.kinds import LogsSpecsFactory as LogsSpecsFactory
    from plaunch.plugin.kinds import RendezvousFactory as RendezvousFactory
    from plaunch.plugin.kinds import RestartPolicyFactory as RestartPolicyFactory
    from plaunch.plugin.kinds import Scheduler as Scheduler
    from plaunch.plugin.kinds import SignalPolicyFactory as SignalPolicyFactory
    from plaunch.plugin.manager import PluginManager as PluginManager
    from plaunch.plugin.metadata import EntryPoint as EntryPoint
    from plaunch.plugin.options import Installed as Installed
    from plaunch.plugin.options import PluginOptions as PluginOptions
    from plaunch.plugin.options import installed_plugins as installed_plugins
    from plaunch.plugin.unknown_groups import unknown_entries as unknown_entries

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "plaunch._names": "closest did_you_mean suggest",
        "plaunch.errors": "one_line",
        ".contributions": "find_binder find_starter find_worker_env find_worker_store notify",
        ".extensions": "create_extensions",
        ".context": "PluginContext",
        ".hookspecs": "hookimpl",
        ".guard": "CallLimits",
        ".hooks": "HookResult Implementation LoadedPlugin",
        ".manager": "PluginManager",
        ".options": "Installed PluginOptions installed_plugins",
        ".unknown_groups": "unknown_entries",
        ".kinds": (
            "ALL_KINDS DEVICE_COUNTS ENGINES EVENT_HANDLERS HEALTH_CHECKS KINDS LIFECYCLE "
            "LOGS_SPECS RENDEZVOUS RESTART_POLICIES SCHEDULERS SIGNAL_POLICIES WITH_OPTIONS "
            "DeviceCounter EngineFactory EventHandlerFactory HealthCheckFactory Kind "
            "LogsSpecsFactory RendezvousFactory RestartPolicyFactory Scheduler "
            "SignalPolicyFactory"
        ),
        ".metadata": "EntryPoint",
    },
)
