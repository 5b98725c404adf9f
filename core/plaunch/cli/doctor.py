"""`--doctor`: the checks of this node, with the options that are given."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from plaunch.cli.installed import plugins_check
from plaunch.cli.parser import as_given
from plaunch.cli.stdout import STDOUT
from plaunch.defaults import DEVICE_HOOKS
from plaunch.doctor.checks import CHECKS
from plaunch.doctor.context import DoctorContext
from plaunch.doctor.findings import Finding, Status, exit_code, format_findings
from plaunch.doctor.running import Bounded, NotDoneError, run_checks
from plaunch.errors import PlaunchError, PluginLoadError, UsageError
from plaunch.plugin.event_handlers import find_event_handlers
from plaunch.plugin.listing import BROKEN, list_plugins
from plaunch.plugin.manager import PluginManager
from plaunch.plugin.registry import LIFECYCLE, RENDEZVOUS, SIGNAL_POLICIES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from plaunch.config import LaunchConfig
    from plaunch.doctor.findings import Check
    from plaunch.plugin.listing import PluginStatus

# How long finding and loading plugins, and making the settings, may take, in seconds: a device
# counter may have to ask torch.
SETTINGS_TIMEOUT = 20.0
_WHAT = "settings"
_CHOSEN = ("rendezvous", "logs_specs", "event_handlers", "signal_policies")
_OPTIONS = ("rdzv_backend", "logs_specs", "event_log_handler", "signal_policy")


def run_doctor(
    args: argparse.Namespace | None,
    plugins: Sequence[object] = (),
    *,
    usage_error: UsageError | None = None,
) -> int:
    """Check this node, print what was found to stdout, and return the exit code.

    Nothing is started or changed. 0 means that there is no problem, though there may be warnings;
    1 that there is one, or that a check could not be made.

    Args:
        args: the parsed options; None if they cannot be parsed.
        plugins: plugins passed in code.
        usage_error: why not.
    """
    resolved = _Resolved(args, plugins)
    findings: list[Finding] = []
    if usage_error is not None:
        findings.append(_usage(usage_error))
    heard = _Heard()
    logger = logging.getLogger("plaunch")
    # Warnings about the options are findings, too, and would stand in the middle of the report.
    handlers, logger.handlers = logger.handlers, [heard]
    try:
        findings += resolved.prepare()
        findings += heard.findings
        checks: dict[str, Check] = {
            **CHECKS,
            "plugins": plugins_check(resolved.rows, _chosen(args)),
        }
        if resolved.manager is not None:
            for name, check in resolved.manager.doctor_checks().items():
                checks[f"plugin {name}"] = check
        context = DoctorContext(
            settings={} if resolved.config is None else resolved.config.settings(),
            options={} if args is None else dict(vars(args)),
        )
        findings += run_checks(checks, context)
    finally:
        logger.handlers = handlers
    STDOUT.write(_title(context) + format_findings(findings, _width()))
    return exit_code(findings)


def asks_for_doctor(argv: Sequence[str]) -> bool:
    """Whether a command line that cannot be parsed has `--doctor` before its script."""
    for word in argv:
        if word == "--doctor":
            return True
        if word == "--" or word.endswith(".py"):
            return False
    return False


class _Resolved:
    """The settings that the options make, as far as they do."""

    def __init__(self, args: argparse.Namespace | None, plugins: Sequence[object]) -> None:
        self._args = args
        self._plugins = plugins
        self._words: list[str] = [] if args is None else list(args.plugins or [])
        self._rows: list[PluginStatus] | None = None
        self.manager: PluginManager | None = None
        self.config: LaunchConfig | None = None

    def rows(self) -> list[PluginStatus]:
        """The state of all plugins."""
        if self._rows is None:
            self._rows = list_plugins(self._plugins, words=self._words)
        return self._rows

    def prepare(self) -> list[Finding]:
        """Load plugins and make the settings, within a bound; returns what is wrong with them."""
        call = Bounded("settings", self._prepare)
        try:
            return [*call.result(SETTINGS_TIMEOUT)]  # type: ignore[misc]
        except NotDoneError:
            return [
                Finding(
                    Status.PROBLEM,
                    _WHAT,
                    f"loading plugins and reading the options took over {SETTINGS_TIMEOUT:g} s",
                    "a plugin hangs while it is imported, or a device counter while it asks its "
                    "driver: give --nproc-per-node a number, and see --list-plugins",
                )
            ]

    def _prepare(self) -> list[Finding]:
        findings = []
        try:
            self.manager = PluginManager.create(self._plugins, words=self._words)
        except PlaunchError as error:
            # What is broken is named again by the check of all plugins; this says what it does.
            findings.append(
                Finding(Status.PROBLEM, _WHAT, f"no launch starts: {error}", "see plugins, below")
            )
            self.manager = self._manager_without_broken()
        with contextlib.suppress(PluginLoadError):
            self.manager.load_module(DEVICE_HOOKS)
        if self._args is not None:
            findings += self._read_options(self._args, self.manager)
        return findings

    def _manager_without_broken(self) -> PluginManager:
        blocked = [
            f"no:{row.kind}:{row.name}"
            for row in self.rows()
            if row.kind == LIFECYCLE.name and (row.status == BROKEN or row.rivals)
        ]
        try:
            return PluginManager.create(words=[*self._words, *blocked])
        except PlaunchError:
            return PluginManager.create(environ={}, first_party_only=True)

    def _read_options(self, args: argparse.Namespace, manager: PluginManager) -> list[Finding]:
        from plaunch.cli.allocation import allocate  # noqa: PLC0415 - as in a launch
        from plaunch.cli.command import worker_command  # noqa: PLC0415
        from plaunch.cli.settings import config_from_args  # noqa: PLC0415

        findings = []
        if args.training_script is not None:
            try:
                worker_command(args)
            except PlaunchError as error:
                findings.append(_usage(error, "script", args.sources))
        try:
            taken = allocate(args, manager)
            if taken:
                findings.append(Finding(Status.OK, "scheduler", taken))
            self.config = config = config_from_args(args, manager)
            manager.get(RENDEZVOUS, config.rdzv_backend)
            find_event_handlers(manager, config.event_log_handler, config.event_conf)
            manager.get(SIGNAL_POLICIES, config.signal_policy)
        except PlaunchError as error:
            findings.append(_usage(error, sources=args.sources))
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


class _Heard(logging.Handler):
    """Makes findings of warnings that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.findings: list[Finding] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.findings.append(Finding(Status.WARNING, _WHAT, record.getMessage()))


def _usage(
    error: PlaunchError, what: str = _WHAT, sources: Mapping[str, str] | None = None
) -> Finding:
    return Finding(
        Status.PROBLEM,
        what,
        as_given(str(error), sources or {}),
        "correct the options; --dry-run shows what they mean",
    )


def _chosen(args: argparse.Namespace | None) -> dict[str, str]:
    if args is None:
        return {}
    chosen = {
        kind: str(getattr(args, option)) for kind, option in zip(_CHOSEN, _OPTIONS, strict=True)
    }
    return {
        **chosen,
        "device_counts": str(args.nproc_per_node),
        "schedulers": str(args.scheduler),
    }


def _title(context: DoctorContext) -> str:
    from plaunch._version import __version__  # noqa: PLC0415 - once it is needed

    return f"plaunch {__version__} on {context.host}\n\n"


def _width() -> int | None:
    if not STDOUT.stream.isatty():
        return None
    try:
        return os.get_terminal_size(STDOUT.stream.fileno()).columns
    except OSError:
        return None
