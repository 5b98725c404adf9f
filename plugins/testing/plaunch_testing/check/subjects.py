"""Finds the plugins that `--check-plugin` names, each with its settings."""

from __future__ import annotations

import contextlib
import inspect
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError, UnknownNameError, UsageError
from plaunch.plugin import (
    ENGINES,
    EVENT_HANDLERS,
    HEALTH_CHECKS,
    KINDS,
    LIFECYCLE,
    RENDEZVOUS,
    RESTART_POLICIES,
    WITH_OPTIONS,
    PluginContext,
    suggest,
)
from plaunch.rendezvous import JobRendezvous, RendezvousParameters
from plaunch_events import find_event_handlers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plaunch.plugin import Kind, PluginManager, PluginOptions, RendezvousFactory
    from plaunch.process import Starter

STARTER = "plaunch_worker_starter"  # its results have their own suite

_SEVERAL = (WITH_OPTIONS, *KINDS)  # one name may be provided under several of these kinds


@dataclass(frozen=True)
class CheckSettings:
    """The settings of the command line for the plugins under test.

    Args:
        endpoint: for a rendezvous backend, as `--rdzv-endpoint`.
        config: for a rendezvous backend, as `--rdzv-conf`.
        nodes: for a rendezvous backend that does not count nodes itself, the number of nodes.
        local_addr: for a rendezvous backend, as `--local-addr`.
        event_conf: for event handlers, values by `handler.key`, as `--event-conf`.
        options: for plugins with options, the values by attribute; for a health check, its name
            with an argument in `health_check`.
    """

    endpoint: str = ""
    config: Mapping[str, object] = field(default_factory=dict)
    nodes: int = 1
    local_addr: str | None = None
    event_conf: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A plugin under test, under one of its names.

    Args:
        kind: its kind.
        name: its own name.
        label: its kind and name, for messages.
        thing: the object that the name refers to.
        given: the settings of the command line.
        module: the module that a launch imports for it; empty for the one that defines `thing`.
        options: the plugin's own options, as in its context.
        suite: the name of its suite, if that is not the one of its kind.
    """

    kind: Kind[Any]
    name: str
    label: str
    thing: Any
    given: CheckSettings
    module: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    suite: str = ""

    @property
    def topic(self) -> str:
        """The name of its suite."""
        return self.suite or self.kind.name

    @property
    def is_for_torch(self) -> bool:
        """Whether it was written for torchrun, and is offered by the bridge."""
        return getattr(self.thing, "__module__", "") == "plaunch_torchrun.bridges"


def find_subjects(text: str, manager: PluginManager, given: CheckSettings) -> list[Subject]:
    """Return the plugins that `text` names, one for each kind that provides the name.

    Raises:
        UsageError: no plugin provides the name, several do, or it rejects its settings.
        PluginError: the plugin cannot be loaded or created.
    """
    kinds, name = find_kinds(text, manager)
    subjects: list[Subject] = []
    for kind in kinds:
        if kind is LIFECYCLE:
            subjects += _with_starter(_subject_with_hooks(manager, name, given))
        elif kind is WITH_OPTIONS:
            subjects += _subjects_with_options(manager, name, given, has_hooks=LIFECYCLE in kinds)
        else:
            subjects.append(_subject(manager, kind, name, given))
    return subjects


def find_kinds(text: str, manager: PluginManager) -> tuple[list[Kind[Any]], str]:
    """Return the kinds that provide a name, and the name to look up in each.

    `text` is `NAME`, `KIND:NAME` or `DISTRIBUTION:NAME`. A plugin whose hooks are called in each
    launch counts as one of the kind `plugin`.

    Raises:
        UnknownNameError: no plugin provides the name.
    """
    owner, colon, bare = text.partition(":")
    for kind in (WITH_OPTIONS, *KINDS):
        if colon and owner == kind.name:
            return [kind], bare
    kinds = []
    if not colon or owner != LIFECYCLE.name:
        kinds = [kind for kind in _SEVERAL if (bare if colon else text) in manager.names(kind)]
    if colon:  # another distribution may provide the name
        kinds = [kind for kind in kinds if _is_offered(text, kind, manager)]
    if _called_in_each_launch(text, manager):
        kinds.insert(0, LIFECYCLE)
    if kinds:
        return kinds, text
    names = {f"{kind.name}:{name}" for kind in _SEVERAL for name in manager.names(kind)}
    names |= {f"{LIFECYCLE.name}:{name}" for name in _always_on(manager)}
    known = names if colon else {name.partition(":")[2] for name in names}
    how_to_add = "; reinstall the package if you just added it"
    raise UnknownNameError(
        f"--check-plugin={text} names no plugin{suggest(text, known, otherwise=how_to_add)}"
    )


def _is_offered(text: str, kind: Kind[Any], manager: PluginManager) -> bool:
    try:
        if kind is WITH_OPTIONS:
            return _declared(text, manager) is not None
        manager.get(kind, text)
    except UnknownNameError:
        return False
    except PlaunchError:
        pass  # reported when it is loaded for the checks
    return True


def _is_owner(owner: str, distribution: str) -> bool:
    from packaging.utils import canonicalize_name  # a dependency of pytest

    return canonicalize_name(owner) == canonicalize_name(distribution)


def _declared(text: str, manager: PluginManager) -> PluginOptions | None:
    """Return the options that the plugin `NAME` or `DISTRIBUTION:NAME` declares."""
    owner, _, bare = text.rpartition(":")
    for declared in manager.plugin_options():
        distribution = declared.owner.partition(" ")[0]
        is_owner = not owner or _is_owner(owner, distribution)
        if declared.name == bare and is_owner:
            return declared
    return None


def _always_on(manager: PluginManager) -> dict[str, tuple[object, list[str]]]:
    """Return the plugins that are loaded without an option, by name, and the hooks of each."""
    found: dict[str, tuple[object, list[str]]] = {}
    for item in manager.implementations():
        kind, _, name = item.plugin.key.partition(":")
        if kind == LIFECYCLE.name:
            found.setdefault(name, (item.plugin.obj, []))[1].append(item.hook)
    return found


def _called_in_each_launch(text: str, manager: PluginManager) -> str:
    """Return the name of the plugin `text` if it has other hooks than those that provide names."""
    offers = {kind.hook for kind in KINDS}
    owner, _, bare = text.rpartition(":")
    owners = {
        plugin.name: plugin.distribution
        for plugin in manager.selected()
        if plugin.kind == LIFECYCLE.name
    }
    for name, (_, hooks) in _always_on(manager).items():
        is_meant = text == name or (
            bare == name and (owner == LIFECYCLE.name or _is_owner(owner, owners.get(name, "")))
        )
        if is_meant and not offers.issuperset(hooks):
            return name
    return ""


def _label(kind: Kind[Any], name: str) -> str:
    return f"{kind.label} {name!r}"


def _module_of(manager: PluginManager, kind: Kind[Any], name: str) -> str:
    """Return the module of a plugin; empty if it was passed in code."""
    loaded = ((one.module, one.kind, one.name) for one in manager.selected())
    return next((module for module, *found in loaded if found == [kind.name, name]), "")


def _subject_with_hooks(manager: PluginManager, text: str, given: CheckSettings) -> Subject:
    name = _called_in_each_launch(text, manager)
    plugin, _ = _always_on(manager)[name]
    module = _module_of(manager, LIFECYCLE, name)
    return Subject(LIFECYCLE, name, _label(LIFECYCLE, text), plugin, given, module)


def _subjects_with_options(
    manager: PluginManager, name: str, given: CheckSettings, *, has_hooks: bool
) -> list[Subject]:
    """Return the module that declares options, and the plugin's hooks unless already included."""
    plugin = manager.load_named(WITH_OPTIONS, name)
    bare = name.rpartition(":")[2]
    declared = _declared(name, manager)
    if declared is None:
        raise UnknownNameError(f"no plugin {name!r} declares options (--check-plugin)")
    label = f"options of plugin {name!r}"
    subjects = [Subject(WITH_OPTIONS, bare, label, declared.declared_by, given, declared.module)]
    if plugin is not None and not has_hooks:
        values = {option.dest: given.options.get(option.dest) for option in declared.options}
        module = _module_of(manager, WITH_OPTIONS, bare)
        label = _label(LIFECYCLE, name)
        subjects += _with_starter(
            Subject(LIFECYCLE, bare, label, plugin.obj, given, module, options=values)
        )
    return subjects


def _with_starter(subject: Subject) -> list[Subject]:
    """Return a plugin with hooks, and its starter if it has one with these options."""
    plugin = subject.thing() if isinstance(subject.thing, type) else subject.thing
    hook = getattr(plugin, STARTER, None)
    if hook is None:
        return [subject]

    def create(context: PluginContext) -> Starter | None:
        starter: Starter | None = hook(*[context][: len(inspect.signature(hook).parameters)])
        return starter

    context = PluginContext("conformance-probe", "default", "node0", options=subject.options)
    with silence(), contextlib.suppress(Exception):  # the suite reports it
        if create(context) is None:
            return [subject]
    label = f"starter of {subject.label}"
    return [subject, replace(subject, label=label, thing=create, suite=STARTER)]


def _subject(manager: PluginManager, kind: Kind[Any], name: str, given: CheckSettings) -> Subject:
    thing = manager.get(kind, name)
    bare = name.rpartition(":")[2]
    options: Mapping[str, object] = {}
    if kind is EVENT_HANDLERS:
        _, options = find_event_handlers(manager, name, given.event_conf)[name]
    if kind in (ENGINES, RESTART_POLICIES):
        own = manager.own_options(kind, name, given.options)
        options = {option.dest: value for option, value in own}
    if kind is HEALTH_CHECKS:
        chosen: Any = given.options.get("health_check", ())
        with_argument = [text for text in chosen if text.startswith(f"{name}:")]
        if with_argument:
            options = {"argument": with_argument[0].removeprefix(f"{name}:")}
    knows_job = kind is RENDEZVOUS and _knows_job(manager, name, thing, given)
    return Subject(
        kind,
        bare,
        _label(kind, name),
        thing,
        given,
        _module_of(manager, kind, bare),
        options=options,
        suite="job_rendezvous" if knows_job else "",
    )


def _knows_job(
    manager: PluginManager, name: str, create: RendezvousFactory, given: CheckSettings
) -> bool:
    """Whether the backend's handler is a `JobRendezvous`, which has a larger suite."""
    params = RendezvousParameters(
        name.rpartition(":")[2],
        given.endpoint,
        "conformance-probe",
        given.nodes,
        given.nodes,
        given.local_addr,
        **dict[str, Any](given.config),
    )
    try:
        with silence():
            handler = manager.call(RENDEZVOUS, name, lambda: create(params))
    except UsageError as error:
        raise UsageError(
            f"{error}; add the --rdzv-endpoint, --rdzv-conf and --nnodes that the backend needs"
        ) from error
    try:
        return isinstance(handler, JobRendezvous)
    finally:
        with silence():
            handler.shutdown()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress plaunch's log lines."""
    logger = logging.getLogger("plaunch")
    handlers, logger.handlers = logger.handlers, [logging.NullHandler()]
    try:
        yield
    finally:
        logger.handlers = handlers
