"""The plugin API, name by name with its signature: what third parties may rely on.

    python tests/api/plugin_api.py            # after a change that the changelog names
    python tests/api/plugin_api.py --initial  # whatever it says

writes `plugin_api.txt` beside this file. What differs from it must be named in the section "Plugin
API" of the unreleased version in docs/changelog.md.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SNAPSHOT = Path(__file__).with_name("plugin_api.txt")
CHANGELOG = Path(__file__).parents[2] / "docs" / "changelog.md"
COMMAND = "python tests/api/plugin_api.py"

ALL: tuple[str, ...] = ()
# The modules that are public to authors of plugins; of some, only what a plugin needs.
MODULES: dict[str, tuple[str, ...]] = {
    "plaunch": ("LaunchConfig", "hookimpl"),
    "plaunch.agent": (
        "Control",
        "Extension",
        "GroupInfo",
        "JobAnswers",
        "JobQuery",
        "OpenStore",
        "Progress",
        "PublishedAnswer",
        "RequestKind",
        "RunResult",
        "Snapshot",
        "StoreRound",
        "WorkerExit",
        "WorkerInfo",
        "WorkerState",
        "WorkerStore",
    ),
    "plaunch.doctor": ALL,
    "plaunch.durations": ALL,
    "plaunch.errors": ALL,
    "plaunch.events": ALL,
    "plaunch.options": ALL,
    "plaunch.lazy": ("TYPE_CHECKING", "attach"),
    "plaunch.numbers": ("digits", "format_bytes", "format_ranks", "quote"),
    "plaunch.texts": ("printable", "printable_output"),
    "plaunch.plugin": ALL,
    "plaunch.plugin.hookspecs": ALL,
    "plaunch.process": (
        "DEFAULT_SIGNALS",
        "Binder",
        "Binding",
        "LogsDest",
        "LogsSpecs",
        "OutputCounts",
        "PatientStreams",
        "Process",
        "ProcessFailure",
        "SignalAction",
        "SignalPolicy",
        "Starter",
        "Std",
        "Streams",
        "describe_exit",
        "is_python",
        "open_pidfd",
        "remove_temporary",
        "parse_signals",
        "read_process",
        "to_map",
        "wait_for_end",
    ),
    "plaunch.health": ALL,
    "plaunch.rendezvous": ALL,
    "plaunch.restarts": ALL,
    "plaunch.scheduling": ALL,
    "plaunch.testing": ALL,
    "plaunch.threads": ("BoundedCall", "start_thread"),
    "plaunch_devices": ALL,
    "plaunch_events": ("COMMON_KEYS", "EventType", "SCHEMA"),
    "plaunch_hang.stacks": ALL,
    "plaunch_membership": ALL,
    "plaunch_network": ALL,
    "plaunch_membership.testing": ALL,
    "plaunch_testing.conformance": ALL,
    "plaunch_testing.simulation": ALL,
    "plaunch_rendezvous_etcd.testing": (
        "Certificates",
        "EtcdCluster",
        "EtcdServer",
        "EtcdUnavailableError",
        "create_certificates",
    ),
}
# Of the suites, what authors write: their tests and the rest may change.
_SUITES = "plaunch_testing.conformance."
_WRITTEN = frozenset({"connect", "create", "plugin"})


def lines() -> list[str]:
    """The whole API, a line for each name, sorted."""
    found = []
    for module_name, names in MODULES.items():
        module = importlib.import_module(module_name)
        for name in names or public_names(module):
            found += list(describe(f"{module_name}.{name}", getattr(module, name)))
    return sorted(set(found))


def public_names(module: object) -> list[str]:
    """What a module offers: its `__all__`, else what is defined in it."""
    listed = getattr(module, "__all__", None)
    if listed:
        return sorted(listed)
    name = module.__name__  # type: ignore[attr-defined]
    return sorted(
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and not inspect.ismodule(value)
        # Constants have no module of their own.
        and (getattr(value, "__module__", name) == name or name.endswith(".conformance"))
        and key not in ("TYPE_CHECKING", "annotations", "hookspec")
    )


def describe(path: str, thing: object) -> Iterator[str]:
    """The lines of one public thing."""
    if inspect.isclass(thing):
        yield from describe_class(path, thing)
    elif inspect.isroutine(thing):
        yield f"{path}{signature(thing)}"
    elif "Alias" in type(thing).__name__ or "Union" in type(thing).__name__:
        yield f"{path} is an alias"
    else:
        yield f"{path}: {type(thing).__name__}"


def describe_class(path: str, cls: type) -> Iterator[str]:
    """A class: its bases of plaunch's, how it is made, and its public members, also inherited."""
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {path}({bases})"
    is_protocol = getattr(cls, "_is_protocol", False)
    if issubclass(cls, enum.Enum):
        for name, member in cls.__members__.items():
            yield f"{path}.{name} = {member.value!r}"
    fields = {item.name: item for item in _fields_of(cls) if not item.name.startswith("_")}
    for name, item in fields.items():
        yield f"{path}.{name}: {item.type}"
    members: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("plaunch"):
            members.update(vars(base))
    for name, member in sorted(members.items()):
        if name == "__init__" and not is_protocol:
            yield f"{path}{signature(member)}"
        if name.startswith("_") or (issubclass(cls, enum.Enum) and name in cls.__members__):
            continue
        if path.startswith(_SUITES) and callable(member) and name not in _WRITTEN:
            continue
        if name in fields:
            continue
        yield from describe_member(f"{path}.{name}", member)


def _fields_of(cls: type) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def describe_member(path: str, member: object) -> Iterator[str]:
    """One attribute of a class."""
    if isinstance(member, (staticmethod, classmethod)):
        yield f"{type(member).__name__} {path}{signature(member.__func__)}"
    elif isinstance(member, property):
        yield f"property {path} -> {getattr(member.fget, '__annotations__', {}).get('return')}"
    elif inspect.isfunction(member):
        yield f"{path}{signature(member)}"
    elif not callable(member) and not hasattr(member, "__get__"):
        yield f"{path}: {type(member).__name__}"


def signature(function: object) -> str:
    """Arguments, annotations and defaults, without what depends on where it runs."""
    try:
        text = str(inspect.signature(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def differences() -> list[str]:
    """The lines that came (`+`) and went (`-`) since the snapshot."""
    known = SNAPSHOT.read_text().splitlines() if SNAPSHOT.exists() else []
    now = lines()
    return [f"- {line}" for line in known if line not in now] + [
        f"+ {line}" for line in now if line not in known
    ]


def name_of(line: str) -> str:
    """What the changelog must name: the function, class or hook that a line is about."""
    words = re.split(r"[(:=]| -> | is an alias", line.removeprefix("- ").removeprefix("+ "))[
        0
    ].split()
    path = words[-1]
    known = (m for m in MODULES if path.startswith(f"{m}."))
    module = max(known, key=len, default=path.partition(".")[0])  # it may be gone as a whole
    return path.removeprefix(f"{module}.").split(".")[0]


def unnamed(changes: list[str], changelog: str) -> list[str]:
    """Those of `changes` that the changelog does not name."""
    section = unreleased_api(changelog)
    return [line for line in changes if not re.search(rf"`[^`]*\b{name_of(line)}\b[^`]*`", section)]


def unreleased_api(changelog: str) -> str:
    """The section "Plugin API" of the unreleased version; empty if there is none."""
    version = re.search(r"^## Unreleased$(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    section = version and re.search(r"^### Plugin API$(.*?)(?=^### |\Z)", version[1], re.M | re.S)
    return section[1] if section else ""


def main() -> int:
    """Write the snapshot, unless something has changed that the changelog does not name."""
    changes = differences()
    missing = unnamed(changes, CHANGELOG.read_text())
    if missing and "--initial" not in sys.argv:
        print('docs/changelog.md does not name these under "Plugin API" of the unreleased version:')
        print(*missing, sep="\n")
        return 1
    SNAPSHOT.write_text("\n".join(lines()) + "\n")
    print(f"{len(changes)} lines have changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
