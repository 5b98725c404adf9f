"""The choices where none is given: the only place where the core names plugins.

Each is a name that users could give, or `"module:name"` in a plugin that comes with plaunch; it is
imported when it is needed.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` takes 8 ms
if TYPE_CHECKING:
    from typing import Any

# Components that nobody has chosen, by kind. torchrun's defaults, but for the backend.
RENDEZVOUS = "static"
LOGS_SPECS = "default"
EVENT_HANDLER = "null"
SIGNAL_POLICY = "torchrun"
RESTART_POLICY = "standard"
# What is said of command lines that are probably not meant: of options, of a script that is not
# there, and of none at all.
ADVICE_ON_OPTIONS = "plaunch_advice.contradictions:advise_on_options"
ADVICE_ON_SCRIPT = "plaunch_advice.scripts:advise_on_script"
ADVICE_ON_NO_SCRIPT = "plaunch_advice.scripts:advise_on_no_script"
# Reads from what is known of workers what restart policies are told of a failure.
FAILURE_OF = "plaunch_restarts.first_cause:failure_of"

# The logs spec of a call that brings none, and comes without plugins.
DIRECT_LOGS_SPECS = "plaunch_logs_default:DefaultLogsSpecs"
# What carries the workers' output, for a logs spec that does not bring its own.
STREAMS = "plaunch_streams.worker_streams:WorkerStreams"
# Makes a `Binder` of what a `WorkerSpec` says of devices and processors, where no agent brings one.
BINDER = "plaunch_devices.binder:create_binder"
# The context of workers that are functions.
FUNCTIONS = "plaunch_functions.context:MultiprocessContext"
# What workers that are functions are started with, as far as that is the same for all.
FUNCTION_COMMAND = "plaunch_functions.spawned:spawn_command"
# Makes the events of a launch, brings them to its event handlers and extensions, and adds up its
# time; and the plugin with options of event handlers.
EVENTS = "plaunch_events:find_events"
EVENT_OPTIONS = "events"
# The extension that looks at a launch once it has failed, and the plugin with options that it
# belongs to, none of which is given. And what makes events of what an agent has told, later on.
AFTER_FAILURE = "plaunch_failure_bundle.plugin:AfterFailure"
FAILURE_BUNDLE = "failure_bundle"
LATE_EVENTS = "plaunch_events:LateEvents"
# The plugin with options that looks at workers which take long to end, shortly before SIGKILL,
# unless it is blocked; and what does that.
STACKS = "stacks"
SLOW_STOPS = "plaunch_stacks.slow_stops:SlowStops"
# Asks the health checks that a launch has chosen.
HEALTH_CHECKS = "plaunch_health.running:LaunchHealthChecks"
# Makes signals raise `SignalException` while a context is used without an agent, as in torchrun.
STOP_SIGNALS = "plaunch_torchrun.stop_signals:StopSignals"
# The plugin with options that answers for `LaunchConfig.devices`, `numa_options` and
# `virtual_local_rank`; the one name here that is looked up as those of users are.
DEVICES = "devices"
# Opens the store of a round of workers, outside of them, where no agent brings one; and the plugin
# with options that does so in a launch, unless it is blocked or another one does.
OPEN_WORKER_STORE = "plaunch_worker_store:open_store"
WORKER_STORE = "worker_store"
# What agents tell each other over the store of a round, behind backends written for torchrun.
RANKS_THROUGH_STORE = "plaunch_torchrun.round_store:assign_ranks"
WAIT_THROUGH_STORE = "plaunch_torchrun.round_store:wait_for_peers"
# The health check that a site has put in the place of torchrun's: whether it has, and the server.
HAS_HEALTH_CHECK = "plaunch_torchrun.health:is_sites_own"
FIND_HEALTH_CHECK = "plaunch_torchrun.health:find_server"
# Lets a worker write an error file, and the launcher one of its own about the first failure.
RECORD = "plaunch_torchrun.error_handler:record"
HAND_UP = "plaunch_torchrun.error_handler:dump_root_cause"
# What a failure report shows of a worker that a signal ended; a site may add to it.
ENRICH_SIGNAL_FAILURE = "plaunch_torchrun.error_handler:enrich_signal_failure"
# Writes what a worker says of another start of it.
WRITE_WORD = "plaunch_torchrun.error_files:write_word"
# Has the functions with which a worker says that it goes on.
BEATING = "plaunch_hang.beating"
# What signals mean to an agent that is given no policy.
DEFAULT_POLICY = "plaunch_signals.torchrun:policy_of_environment"
# Make plaunch's of what packages list in torchrun's two groups for torch's own types.
TORCHRUN_CREATORS = "plaunch_torchrun.bridges:bridge_creator"
TORCHRUN_LOGS_SPECS = "plaunch_torchrun.bridges:bridge_logs_specs"
# The text of a `ChildFailedError`; a shorter one takes its place if that cannot be had.
FAILURE_REPORT = "plaunch_report.failure_report:format_report"
# The message about one on the console of the launcher, with the same to fall back upon.
CONSOLE_REPORT = "plaunch_report.console_report:format_for_console"
# A message in colours; one as JSON; and what makes teed lines of workers JSON.
PAINT = "plaunch_report.colors:paint"
JSON_LINE = "plaunch_report.json_lines:json_line"
JSON_TEMPLATE = "plaunch_report.json_lines:template_of_lines"
# What `--help` and `--version` print.
SHOW_HELP = "plaunch_completion.help:show_help"
SHOW_VERSION = "plaunch_completion.help:show_version"
# Says which limit on processes and threads is reached, and what to do.
DESCRIBE_SHORTAGE = "plaunch_doctor.capacity:describe_shortage"
# Counts the devices that a word of --nproc-per-node means which no plugin offers; None if none.
UNKNOWN_DEVICES = "plaunch_devices.torch_child:count_private_use"


def advise(path: str, *about: object) -> str:
    """What one of these names that gives advice says; nothing if it is not installed."""
    from plaunch.errors import PluginLoadError  # noqa: PLC0415 - workers come here for less

    try:
        return str(load_default(path)(*about) or "")
    except PluginLoadError:
        return ""


def load_default(path: str) -> Any:
    """Import what one of these names.

    Raises:
        PluginLoadError: the plugin is not installed.
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        from plaunch.errors import PluginLoadError  # noqa: PLC0415 - workers come here for less

        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise PluginLoadError(
            f"{package}, which comes with plaunch, is not installed; reinstall plaunch"
        ) from error
    return getattr(found, name)
