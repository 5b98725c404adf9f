"""`--check-plugin`: the conformance suites, run over an installed plugin."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from typing import TYPE_CHECKING, Any, TextIO

from plaunch.cli.settings import parse_min_max_nnodes, parse_rdzv_conf
from plaunch.cli.stdout import STDOUT
from plaunch.errors import PlaunchError, PluginLoadError, UnknownNameError, UsageError
from plaunch.plugin.event_handlers import find_event_handlers, parse_event_conf
from plaunch.plugin.manager import PluginManager
from plaunch.plugin.metadata import normalise
from plaunch.plugin.registry import EVENT_HANDLERS, KINDS, LIFECYCLE, RENDEZVOUS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from plaunch.cli.invocation import Invocation
    from plaunch.plugin.registry import Kind
    from plaunch.testing.check import CheckResult, Subject

_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "left out"}
_INDENT = 4


def check_command(invocation: Invocation) -> int:
    """`--check-plugin`."""
    return run_check(invocation.parsed(), invocation.plugins)


def run_check(args: argparse.Namespace, plugins: Sequence[object] = ()) -> int:
    """Check the plugin that `--check-plugin` names, under all kinds in which the name is offered.

    Prints a line for each check, then what is wrong. Returns 0 if all is well, else 1.

    Args:
        args: the parsed options; the rendezvous options are those of a backend that is checked.
        plugins: plugins passed in code.

    Raises:
        UsageError: nobody offers the name, several do, or the plugin lacks something.
        PluginError: the plugin cannot be loaded.
        PluginLoadError: pytest is missing.
    """
    if importlib.util.find_spec("pytest") is None:
        raise PluginLoadError(
            "--check-plugin needs pytest, which is not installed; "
            "python -m pip install 'plaunch[testing]'"
        )
    manager = PluginManager.create(plugins, words=args.plugins)
    kinds, name = find_kinds(args.check_plugin, manager)
    subjects = [
        _subject_with_hooks(manager, name)
        if kind is LIFECYCLE
        else _subject(args, manager, kind, name)
        for kind in kinds
    ]

    from plaunch.testing.check import check_plugin  # noqa: PLC0415 - it imports pytest

    labels = {kind.name: f"{kind.label} {name!r}" for kind in kinds}
    with _own_stdout() as out, _silence():
        told: list[str] = []

        def show(result: CheckResult) -> None:
            if result.kind not in told:
                told.append(result.kind)
                out.write(f"{labels[result.kind]}\n")
            why = f" ({result.found})" if result.outcome == "skipped" and result.found else ""
            out.write(f"  {_MARKS[result.outcome]:8}  {result.check}{why}\n")
            out.flush()

        end: list[str] = []

        def gave_up() -> None:
            end.append("the other checks were given up, as it does not answer in time\n")

        results = check_plugin(subjects, show, gave_up)
        failed = [result for result in results if result.outcome == "failed"]
        for alike in _alike(failed):
            out.write(_details(labels[alike[0].kind], alike))
        out.write(f"\n{_summary(results)}\n{''.join(end)}")
    return 1 if failed else 0


def find_kinds(text: str, manager: PluginManager) -> tuple[list[Kind[Any]], str]:
    """The kinds in which a name is offered, and the name as it is to be looked up in each.

    `text` is `NAME`, `KIND:NAME` or `DISTRIBUTION:NAME`. A plugin whose hooks are called in each
    launch counts as one of the kind `plugin`.

    Raises:
        UnknownNameError: nobody offers the name.
    """
    owner, colon, bare = text.partition(":")
    for kind in KINDS:
        if colon and owner == kind.name:
            return [kind], bare
    kinds = []
    if not colon or owner != LIFECYCLE.name:
        kinds = [kind for kind in KINDS if (bare if colon else text) in manager.names(kind)]
    if colon:  # the name may be that of another distribution's
        kinds = [kind for kind in kinds if _is_offered(text, kind, manager)]
    if _called_in_each_launch(text, manager):
        kinds.insert(0, LIFECYCLE)
    if kinds:
        return kinds, text
    from plaunch._names import suggest  # noqa: PLC0415 - errors only
    from plaunch.plugin.catalogue import how_to_add  # noqa: PLC0415

    names = {f"{kind.name}:{name}" for kind in KINDS for name in manager.names(kind)}
    names |= {f"{LIFECYCLE.name}:{name}" for name in manager.always_on()}
    known = names if colon else {name.partition(":")[2] for name in names}
    raise UnknownNameError(
        f"--check-plugin={text} names no plugin{suggest(text, known)}{how_to_add(text, known)}"
    )


def _is_offered(text: str, kind: Kind[Any], manager: PluginManager) -> bool:
    try:
        manager.get(kind, text)
    except UnknownNameError:
        return False
    except PlaunchError:
        pass  # said when it is looked up to be checked
    return True


def _called_in_each_launch(text: str, manager: PluginManager) -> str:
    """The name of the plugin that `text` means, if it has hooks beside those that offer names."""
    offers = {kind.hook for kind in KINDS}
    owner, _, bare = text.rpartition(":")
    owners = {
        plugin.name: normalise(plugin.distribution)
        for plugin in manager.selected()
        if plugin.kind == LIFECYCLE.name
    }
    for name, (_, hooks) in manager.always_on().items():
        is_meant = text == name or (
            bare == name and normalise(owner) in (LIFECYCLE.name, owners.get(name))
        )
        if is_meant and not offers.issuperset(hooks):
            return name
    return ""


def _subject_with_hooks(manager: PluginManager, text: str) -> Subject:
    from plaunch.testing.check import Subject  # noqa: PLC0415 - as below

    name = _called_in_each_launch(text, manager)
    plugin, _ = manager.always_on()[name]
    module = next(
        (p.module for p in manager.selected() if (p.kind, p.name) == (LIFECYCLE.name, name)), ""
    )
    return Subject(LIFECYCLE.name, name, plugin, module)


def _subject(
    args: argparse.Namespace, manager: PluginManager, kind: Kind[Any], name: str
) -> Subject:
    from plaunch.testing.check import Subject  # noqa: PLC0415 - as above

    thing = manager.get(kind, name)
    bare = name.rpartition(":")[2]
    module = next(
        (one.module for one in manager.selected() if (one.kind, one.name) == (kind.name, bare)), ""
    )
    is_for_torch = thing.__module__ == "plaunch.plugin.torchrun"  # the bridge
    if kind is EVENT_HANDLERS:
        conf: dict[str, str] = {}
        for text in args.event_conf:
            conf.update(parse_event_conf(text))
        _, options = find_event_handlers(manager, name, conf)[name]
        return Subject(kind.name, bare, thing, module, is_for_torch, options=options)
    if kind is not RENDEZVOUS:
        return Subject(kind.name, bare, thing, module, is_for_torch)
    _, nodes = parse_min_max_nnodes(args.nnodes)
    return Subject(
        kind.name,
        bare,
        thing,
        module,
        is_for_torch,
        endpoint=args.rdzv_endpoint,
        config=parse_rdzv_conf(args.rdzv_conf),
        nodes=nodes,
    )


def _alike(failed: Sequence[CheckResult]) -> list[list[CheckResult]]:
    """The failures, together where the same was found: they mostly have one cause."""
    groups: dict[tuple[str, str], list[CheckResult]] = {}
    for result in failed:
        groups.setdefault((result.kind, result.found), []).append(result)
    return list(groups.values())


def _details(label: str, alike: Sequence[CheckResult]) -> str:
    result = alike[0]
    if len(alike) > 1:
        lines = [f"\n{label}: {len(alike)} checks fail alike"]
        lines += [one.check for one in alike]
    else:
        lines = [f"\n{label}: {result.check}"]
        if result.about:
            lines.append(f"expected: {result.about}")
    lines.append(f"found: {result.found}")
    if os.environ.get("PLAUNCH_DEBUG") == "1":
        lines.append(result.traceback)
    first, *rest = "\n".join(lines).lstrip("\n").splitlines()
    return "\n".join(["", first, *(" " * _INDENT + line for line in rest)]) + "\n"


def _summary(results: Sequence[CheckResult]) -> str:
    counts = {name: sum(one.outcome == name for one in results) for name in _MARKS}
    return (
        f"{len(results)} checks: {counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['skipped']} left out"
    )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What a plugin logs while it is checked is no news to anybody."""
    logger = logging.getLogger("plaunch")
    handlers, logger.handlers = logger.handlers, [logging.NullHandler()]
    try:
        yield
    finally:
        logger.handlers = handlers


def _own_stdout() -> TextIO:
    """A copy of stdout; the checks run with stdout captured."""
    try:
        STDOUT.stream.flush()
        fd = os.dup(STDOUT.stream.fileno())
    except (AttributeError, OSError, ValueError):
        raise UsageError("--check-plugin prints to stdout, which is not open") from None
    return open(fd, "w", encoding="utf-8", errors="backslashreplace")
