"""The parts of plaunch outside of the core that the core calls where there is no plugin manager.

That is the rule for a new entry: it is called in workers; by agents, contexts and logs specs, which
programs may use without a launch; by the plugin manager itself; or for messages, which may precede
it. What a launch calls is found by its plugin manager: a component by its name, a hook, or what the
options of a plugin declare (`find_declaring` in `plaunch.plugin.contributions`).

`BUILT_IN` lists what a launch cannot do without. All other parts are optional: the comment on each
says what a launch does if its folder is not installed.
"""

from __future__ import annotations

import importlib

from plaunch.lazy import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

# --- built in -------------------------------------------------------------------------------------

# Carries the workers' output, for a logs spec that does not bring its own streams.
STREAMS = "plaunch_logs_default.streams.worker_streams:open_worker_streams"
# The logs spec of a call without plugins.
DIRECT_LOGS_SPECS = "plaunch_logs_default:DefaultLogsSpecs"
# The signal policy of an agent that is given none.
DEFAULT_POLICY = "plaunch_signals.policies:policy_of_environment"

# The packages that must be installed: they have the parts above, the components that `Kind.default`
# names, and what these import.
BUILT_IN = frozenset(
    {
        "plaunch_logs_default",
        "plaunch_network",
        "plaunch_rendezvous_static",
        "plaunch_signals",
    }
)

# --- optional: a launch does not have what it does ------------------------------------------------

# Advice on command lines that are probably not meant: no advice.
ADVICE_ON_OPTIONS = "plaunch_command_line.advice:advise_on_options"
ADVICE_ON_SCRIPT = "plaunch_command_line.advice:advise_on_script"
# Makes events of what an agent has done so far: an error where an extension takes events.
EVENT_STREAM = "plaunch_events:EventStream"
# Opens the workers' store outside of them: the worker of rank 0 hosts it.
OPEN_WORKER_STORE = "plaunch_worker_store:open_store"
# The text of a `ChildFailedError`, and its text for the console: a short report.
FAILURE_REPORT = "plaunch_report.failure_report:format_report"
CONSOLE_REPORT = "plaunch_report.console_report:format_for_console"
# Colours of messages: none. Lines of a terminal's width: the terminal breaks inside of words.
PAINT = "plaunch_report.colors:paint"
WRAP = "plaunch_report.wrapping:wrap"
# Names the limit on processes and threads that is reached: a message without the limit.
DESCRIBE_SHORTAGE = "plaunch_doctor.limits:describe_shortage"
# Writes the first failure to the error file of a launcher that is a worker itself: a message.
WRITE_ERROR_FILE = "plaunch_torchrun.error_handler:dump_root_cause"
# Adds what the site knows about a signal to a failure: a message, and the report without it.
ENRICH_SIGNAL_FAILURE = "plaunch_torchrun.error_handler:enrich_signal_failure"
# Where workers are that do not exit: unknown, and only error files show exceptions.
EXIT_PLACES = "plaunch_hang.stacks.exit_places:find_exit_places"
# Whether `FIND_HEALTH_CHECK`, below, has a server of the site's own: it has not.
HAS_HEALTH_CHECK = "plaunch_torchrun.health:is_sites_own"

# --- optional: what needs it is an error ----------------------------------------------------------

# Assigns devices and processors as a `WorkerSpec` says, for an agent that is given no binder.
BINDER = "plaunch_devices.binder:create_binder"
# The context of workers that are functions.
FUNCTIONS = "plaunch_multiprocessing.context:MultiprocessContext"
# Messages as JSON (`--log-format=json`), and lines of workers.
JSON_LINE = "plaunch_report.json_lines:json_line"
JSON_TEMPLATE = "plaunch_report.json_lines:template_of_lines"
# The server for `TORCHELASTIC_HEALTH_CHECK_PORT`, which agents ask for.
FIND_HEALTH_CHECK = "plaunch_torchrun.health:find_server"
# Signal handlers of a context that is used without an agent.
STOP_SIGNALS = "plaunch_torchrun.stop_signals:StopSignals"
# The workers of agents that define torchrun's methods themselves, and must be polled.
POLLED_WORKERS = "plaunch_torchrun.polled_workers:PolledWorkers"
# Exchange of ranks and of ends between agents behind backends written for torchrun.
RANKS_THROUGH_STORE = "plaunch_torchrun.round_store:assign_ranks"
WAIT_THROUGH_STORE = "plaunch_torchrun.round_store:wait_for_peers"
# Adapters for packages that list torch's own types in torchrun's two entry-point groups.
TORCHRUN_IMPORTS = "plaunch_torchrun.bridges:import_rendezvous"
TORCHRUN_CREATORS = "plaunch_torchrun.bridges:bridge_creator"
TORCHRUN_LOGS_SPECS = "plaunch_torchrun.bridges:bridge_logs_specs"
# The adapter for an object of torch's `LogsSpecs` that a program gives to a context.
TORCHS_LOGS_SPECS = "plaunch_torchrun.translate:own_logs_specs"
# In workers: error files, and the functions of `plaunch.worker`.
RECORD = "plaunch_torchrun.error_handler:record"
WRITE_EXIT_REASON = "plaunch_torchrun.error_files:write_exit_reason"
HEARTBEATS = "plaunch_hang.worker"


def package_of(path: str) -> str:
    """Return the top-level package of a part."""
    return path.partition(":")[0].partition(".")[0]


def load_object(path: str) -> Any:
    """Import the object that `module:name` names; raises whatever the import raises."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def find_part(path: str) -> Any | None:
    """Import a part; None if its package is not installed."""
    try:
        return load_object(path)
    except ModuleNotFoundError as error:
        if error.name != package_of(path):
            raise
        return None


def load_part(path: str) -> Any:
    """Import a part.

    Raises:
        PluginLoadError: its package is not installed.
    """
    found = find_part(path)
    if found is None:
        from plaunch.errors import PluginLoadError  # workers come here for less

        raise PluginLoadError(
            f"{package_of(path)}, which comes with plaunch, is not installed; reinstall plaunch"
        )
    return found


def advise(path: str, *about: object) -> str:
    """The text of a part that gives advice; empty if it is not installed."""
    part = find_part(path)
    return "" if part is None else str(part(*about) or "")
