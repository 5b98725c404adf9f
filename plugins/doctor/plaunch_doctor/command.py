"""`--doctor`: check this node with the options of the command line."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from plaunch import __version__
from plaunch.doctor import Finding, Status
from plaunch.errors import PlaunchError
from plaunch.plugin import RENDEZVOUS, WITH_OPTIONS, PluginManager
from plaunch.rendezvous import BackendTraits, traits_of

from plaunch_doctor.checks import CHECKS, run_checks, start_call
from plaunch_doctor.context import NodeContext
from plaunch_doctor.findings import exit_code, format_findings
from plaunch_doctor.installation import plugins_check
from plaunch_doctor.listing import list_plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

    from plaunch import LaunchConfig
    from plaunch.cli import Invocation
    from plaunch.health import HealthChecks
    from plaunch.plugin import Implementation

    from plaunch_doctor.context import NodeCheck
    from plaunch_doctor.listing import PluginStatus

# Seconds for loading plugins and making the settings. A device counter may have to import torch.
SETTINGS_TIMEOUT = 20.0
_WHAT = "settings"
# The options that select a component, by the kind of the component.
_SELECTED_BY = {
    "device_counts": "nproc_per_node",
    "event_handlers": "event_log_handler",
    "logs_specs": "logs_specs",
    "rendezvous": "rdzv_backend",
    "restart_policies": "restart_policy",
    "schedulers": "scheduler",
    "signal_policies": "signal_policy",
}


def run_doctor(invocation: Invocation, settings_timeout: float = SETTINGS_TIMEOUT) -> int:
    """Check this node, print the findings to stdout, and return the exit code.

    Starts and changes nothing. Returns 0 without problems (there may be warnings), and 1 with a
    problem or a broken check.

    Args:
        invocation: the command line.
        settings_timeout: seconds for loading plugins and making the settings.
    """
    resolved = _ResolvedSettings(invocation, settings_timeout)
    findings: list[Finding] = []
    if invocation.error is not None:
        findings.append(_usage(invocation.error, invocation))
    warnings = _WarningFilter()
    logger = logging.getLogger("plaunch")
    logger.addFilter(warnings)
    try:
        findings += resolved.prepare()
        findings += warnings.findings
        checks: dict[str, NodeCheck] = {
            **CHECKS,
            "plugins": plugins_check(resolved.rows, _selected_names(invocation)),
        }
        if resolved.manager is not None:
            for name, check in checks_of_plugins(resolved.manager).items():
                checks[f"plugin {name}"] = check
        calls = {} if resolved.health is None else resolved.health.calls()
        checks.update(
            {f"health check {name}": _without_context(call) for name, call in calls.items()}
        )
        if resolved.config is not None and resolved.config.logs_specs is not None:
            checks["logs spec"] = resolved.config.logs_specs.doctor_findings
        context = NodeContext(
            settings={} if resolved.config is None else resolved.config.settings(),
            options=dict(invocation.options),
            traits=resolved.traits,
        )
        findings += run_checks(checks, context)
    finally:
        logger.removeFilter(warnings)
        if resolved.health is not None:
            resolved.health.close()
    invocation.write(_title(context) + format_findings(findings, _width(invocation.stream)))
    return exit_code(findings)


def checks_of_plugins(manager: PluginManager) -> dict[str, NodeCheck]:
    """Return the checks that plugins contribute, by the plugin's name.

    Loads the plugins that declare options. Errors are suppressed: the check `plugins` reports them.
    """
    for name in manager.names(WITH_OPTIONS):
        with contextlib.suppress(PlaunchError):
            manager.load_named(WITH_OPTIONS, name)

    def check(item: Implementation) -> NodeCheck:
        return lambda context: item.call({"context": context}) or ()

    items = manager.implementations("plaunch_doctor_checks")
    return {item.plugin.key: check(item) for item in items}


class _ResolvedSettings:
    """The plugin manager and the settings, as far as the options allow making them."""

    def __init__(self, invocation: Invocation, timeout: float) -> None:
        self._invocation = invocation
        self._timeout = timeout
        self._words: list[str] = list(invocation.options.get("plugins", ()))
        self._rows: list[PluginStatus] | None = None
        self.manager: PluginManager | None = None
        self.config: LaunchConfig | None = None
        self.traits = BackendTraits()
        self.health: HealthChecks | None = None

    def rows(self) -> list[PluginStatus]:
        """Return the state of all plugins."""
        if self._rows is None:
            self._rows = list_plugins(self._invocation.plugins, words=self._words)
        return self._rows

    def prepare(self) -> list[Finding]:
        """Load plugins and make the settings, with a time limit; return the findings."""
        call = start_call("settings", self._prepare)
        if call is None:
            return self._prepare()
        if not call.wait(self._timeout):
            return [
                Finding(
                    Status.PROBLEM,
                    _WHAT,
                    f"loading plugins and reading the options took over {self._timeout:g} s",
                    "a plugin hangs while it is imported, or a device counter while it asks its "
                    "driver: give --nproc-per-node a number, and see --list-plugins",
                )
            ]
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def _prepare(self) -> list[Finding]:
        findings = []
        try:
            self.manager = self._invocation.create_manager()
        except PlaunchError as error:
            # The check of all plugins lists the broken ones; this finding adds the consequence.
            findings.append(
                Finding(
                    Status.PROBLEM, _WHAT, f"no launch can start: {error}", "see plugins, below"
                )
            )
            self.manager = self._manager_without_broken()
        if self._invocation.args is not None:
            findings += self._read_options(self.manager)
        return findings

    def _manager_without_broken(self) -> PluginManager:
        blocked = [
            f"no:{row.kind}:{row.name}"
            for row in self.rows()
            if row.is_always_on and (row.is_broken or row.rivals)
        ]
        try:
            return PluginManager.create(words=[*self._words, *blocked])
        except PlaunchError:
            return PluginManager.create(environ={}, first_party_only=True)

    def _read_options(self, manager: PluginManager) -> list[Finding]:
        findings = []
        invocation = self._invocation
        try:
            if invocation.options["training_script"] is not None:
                invocation.command()
        except PlaunchError as error:
            findings.append(_usage(error, invocation, "script"))
        try:
            self.config, taken = invocation.configure(manager)
            config = self.config
            if taken:
                findings.append(Finding(Status.OK, "scheduler", taken))
            self.traits = traits_of(manager.get(RENDEZVOUS, config.rdzv_backend))
            self.health = invocation.prepare(manager, config).health_checks
        except PlaunchError as error:
            findings.append(_usage(error, invocation))
        else:
            nodes = f"{config.min_nodes}:{config.max_nodes}"
            endpoint = f" at {config.rdzv_endpoint}" if config.rdzv_endpoint else ""
            findings.append(
                Finding(
                    Status.OK,
                    _WHAT,
                    f"nodes {nodes}, {config.nproc_per_node} worker(s) on this one, backend "
                    f"{config.rdzv_backend}{endpoint}",
                )
            )
        return findings


def _without_context(call: Callable[[], Iterable[Finding]]) -> NodeCheck:
    return lambda context: call()


class _WarningFilter(logging.Filter):
    """Converts warnings to findings, and drops all messages: they would interrupt the report."""

    def __init__(self) -> None:
        super().__init__()
        self.findings: list[Finding] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Append a finding."""
        if record.levelno >= logging.WARNING:
            self.findings.append(Finding(Status.WARNING, _WHAT, record.getMessage()))
        return False


def _usage(error: PlaunchError, invocation: Invocation, what: str = _WHAT) -> Finding:
    return Finding(
        Status.PROBLEM,
        what,
        invocation.name_sources(str(error)),
        "correct the options; --dry-run shows what they mean",
    )


def _selected_names(invocation: Invocation) -> dict[str, str]:
    """Return the names of components that the options select, by kind."""
    given = invocation.options
    return {kind: str(given[option]) for kind, option in _SELECTED_BY.items() if option in given}


def _title(context: NodeContext) -> str:
    return f"plaunch {__version__} on {context.host}\n\n"


def _width(stream: TextIO) -> int | None:
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return None
