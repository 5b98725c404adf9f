"""Generates docs/compatibility.md by comparing plaunch with torch's sources.

It reads the installed torch, and the record of the newest one by `torch_surface.py`.
`python tools/docs/compatibility.py docs/compatibility.md` writes the page; without an argument it
prints it. Errors in the tables of `torchrun_names` are printed on stderr, and the exit code is
then 1.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch_surface
import torchrun_names as names
from plaunch.cli import installed_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from plaunch.options import Option
    from torch_surface import TorchOption, TorchSurface

COMMAND = "python tools/docs/compatibility.py docs/compatibility.md"
NEWEST = "2.15.0"  # the version that is recorded
# Modules of plaunch with names that torchrun also has.
_OWN = (
    "plaunch.agent",
    "plaunch.cli",
    "plaunch.events",
    "plaunch.process",
    "plaunch.rendezvous",
    "plaunch_devices",
    "plaunch_multiprocessing",
    "plaunch_network",
    "plaunch_torchrun.elastic.timer",
    "plaunch",
)
_ABSENT = "—"  # if a version of torch does not have it
_SHOWN = 3  # differences of one name; the link leads to the reason
_INTRODUCTION = f"""\
# Compatibility with torchrun

Every option, variable and public name of torchrun, and whether plaunch has the same. If the status
is *different*, the link explains why and how; — means that this version of torch does not have it.
`{COMMAND}` generates this page from the sources of plaunch
and torch {{versions}}; a test compares it with all of them.
"""
_NCCL = """\
## "nccl" in torch 2.15

From torch 2.15 on, `init_process_group("nccl")` makes a group of another implementation, which
torch also calls `nccl2`. `TORCH_DIST_USE_NCCL2=0` in the environment selects the earlier one, and
`"nccl-legacy"` selects it for one group. The launcher has no part in it, and every option of
plaunch means the same as before. What follows for jobs was read in torch's sources;
[Checks on a GPU](gpu.md) says whether it has been run:
"""
_NAMES = """\
## Public names

They are in `plaunch_torchrun`. Its modules have the names of torch's, without `torch.distributed`;
each package below `elastic` is one module. Many names are also plaunch's own, as the second column
shows. A name that one module of torch imports from another is listed where it is defined.
"""


class Page:
    """The page, and the problems in its tables.

    Args:
        surfaces: the surfaces of torch's versions, oldest first.
    """

    def __init__(self, surfaces: Sequence[TorchSurface] = ()) -> None:
        self.problems: list[str] = []
        self._surfaces = surfaces or (torch_surface.installed(), torch_surface.recorded(NEWEST))
        self._versions = tuple(surface.version for surface in self._surfaces)

    def text(self) -> str:
        """Return the whole page."""
        parts = [
            _INTRODUCTION.format(versions=" and ".join(self._versions)),
            "## Options\n\nWrite each option with dashes or underscores. If its variable is set, "
            "that is its default.\n",
            _table(
                ("option", "variable", "default", "type", *self._versions),
                self._options(),
            ),
            "Options that torchrun does not have: "
            + ", ".join(f"`{name}`" for name in sorted(self._own_options()))
            + ".\n",
            "## Environment variables\n",
            _table(("variable", "torchrun", *self._versions, "remark"), self._variables()),
            _NCCL,
            _table(("", "up to 2.14", "2.15"), names.NCCL),
            _NAMES,
            *self._names(),
        ]
        return "\n".join(parts)

    def _statuses(self, status: Callable[[TorchSurface], str]) -> list[str]:
        """Return a cell for each version; report a problem of several versions once."""
        before = len(self.problems)
        cells = [status(surface) for surface in self._surfaces]
        self.problems[before:] = dict.fromkeys(self.problems[before:])
        return cells

    # --- options ----------------------------------------------------------------------------------

    def _options(self) -> Iterator[tuple[str, ...]]:
        ours = {option.dest: option for option in installed_table((), {})}
        theirs: dict[str, TorchOption] = {}
        for surface in self._surfaces:
            theirs.update(surface.options)
        for dest, option in theirs.items():
            variable = f"`PET_{dest.upper()}`"
            if not option.has_variable:
                variable += " (not in torchrun)"
            yield (
                ", ".join(f"`{name}`" for name in option.names),
                variable,
                _value(option.default),
                _type_name(option),
                *self._statuses(
                    lambda surface, dest=dest: self._option_status(  # type: ignore[misc]
                        surface.options.get(dest), ours.get(dest)
                    )
                ),
            )

    def _option_status(self, theirs: TorchOption | None, option: Option | None) -> str:
        if theirs is None:
            return _ABSENT
        name = theirs.long
        if option is None:
            reason = names.OPTIONS_MISSING.get(name)
            if reason is None:
                self.problems.append(
                    f"torchrun's option {name} is not in plaunch.cli.options; add it, or say in "
                    "OPTIONS_MISSING why it is not"
                )
            return f"missing: {reason}"
        differs = _option_difference(theirs, option)
        if name in names.OPTIONS_DIFFERENT:
            return _link(names.OPTIONS_DIFFERENT[name])
        if differs:
            self.problems.append(
                f"torchrun's option {name}: {differs}; make it the same, or put it into "
                "OPTIONS_DIFFERENT"
            )
        return "same"

    def _own_options(self) -> set[str]:
        theirs = {"help", *(dest for surface in self._surfaces for dest in surface.options)}
        return {option.names[-1] for option in installed_table((), {}) if option.dest not in theirs}

    # --- variables --------------------------------------------------------------------------------

    def _variables(self) -> Iterator[tuple[str, ...]]:
        known = frozenset[str]().union(*(surface.variables for surface in self._surfaces))
        for name in sorted(known - set(names.VARIABLES)):
            self.problems.append(
                f"torch's launcher knows the variable {name}; add a row to VARIABLES"
            )
        for name in sorted(set(names.VARIABLES) - known):
            self.problems.append(f"{name} has a row in VARIABLES, but torch has no such variable")
        for name, (use, status, more) in sorted(names.VARIABLES.items()):
            shown = _link(more) if status == "different" else status
            cells = (shown if name in surface.variables else _ABSENT for surface in self._surfaces)
            yield f"`{name}`", use, *cells, more if status == "missing" else ""

    # --- names ------------------------------------------------------------------------------------

    def _names(self) -> Iterator[str]:
        listed = {*names.DIFFERENT, *names.MISSING}
        for module in sorted({name for surface in self._surfaces for name in surface.modules}):
            whole = f"{module}.*"
            if whole in names.MISSING:
                listed.discard(whole)
                yield f"### {module}\n\nMissing: {names.MISSING[whole]}.\n"
                continue
            public = [surface.modules.get(module, {}) for surface in self._surfaces]
            found = sorted({name for things in public for name in things})
            rows = [(f"`{name}`", *self._name(f"{module}.{name}")) for name in found]
            listed -= {f"{module}.{name}" for name in found}
            yield f"### {module}\n\nIn `{names.home(module)}`:\n"
            yield _table(("name", "the same as", *self._versions, "remark"), rows)
        self.problems += [f"{dotted} has a row, but torch has no such name" for dotted in listed]

    def _name(self, dotted: str) -> tuple[str, ...]:
        module, _, name = dotted.rpartition(".")
        home = names.home(module)
        ours = getattr(importlib.import_module(home), name, None)
        reason = names.MISSING.get(dotted)
        if ours is None and reason is None:
            self.problems.append(
                f"{dotted} is a public name of torch's launcher, which {home} does not have; "
                "add it there, or say in MISSING of torchrun_names.py why it is not"
            )
        if ours is not None and reason is not None:
            self.problems.append(f"{dotted} is in MISSING, and {home} has it")
        remark = reason or ""

        def status(surface: TorchSurface) -> str:
            nonlocal remark
            theirs = surface.modules.get(module, {}).get(name, _ABSENT)
            if theirs is _ABSENT:
                return _ABSENT
            if ours is None:
                return "missing"
            found = differences(theirs, ours)
            if dotted in names.DIFFERENT:
                more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
                remark = f"{'; '.join(found[:_SHOWN])}{more}"
                return _link(names.DIFFERENT[dotted])
            self.problems += [f"{dotted} of torch {surface.version}: {text}" for text in found]
            return "same"

        cells = self._statuses(status)
        return "" if ours is None else _own_name(name, ours), *cells, remark


def _own_name(name: str, thing: object) -> str:
    """Return plaunch's other names for it in the API reference."""
    homes = (home for home in _OWN if getattr(importlib.import_module(home), name, None) is thing)
    return next((f"`{home}.{name}`" for home in homes), "")


def differences(theirs: Any, ours: Any) -> list[str]:
    """Return what `ours` lacks for callers and subclasses of `theirs`; empty if nothing."""
    if isinstance(theirs, str):
        return [] if ours == theirs else [f"it is {ours!r} instead of {theirs!r}"]
    if isinstance(theirs, type) and not isinstance(ours, type):
        return ["it is no class"]
    if isinstance(theirs, type) and issubclass(theirs, enum.Enum):
        mine = {name: member.value for name, member in ours.__members__.items()}
        return [
            f"there is no member {name}={member.value!r}"
            for name, member in theirs.__members__.items()
            if mine.get(name) != member.value
        ]
    if not isinstance(theirs, type):
        return _signature_differences("", theirs, ours) if callable(theirs) else []
    found = []
    if not issubclass(theirs, BaseException) or "__init__" in vars(theirs):
        found += _signature_differences("", theirs, ours)
    for base in theirs.__mro__:
        if not base.__module__.startswith("torch."):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or inspect.ismemberdescriptor(member):
                continue
            if not hasattr(ours, name) and name not in getattr(ours, "__dataclass_fields__", ()):
                found.append(f"there is no .{name}")
            elif inspect.isfunction(inspect.unwrap(getattr(theirs, name))):
                found += _signature_differences(
                    f".{name}", getattr(theirs, name), getattr(ours, name)
                )
    return found


def _signature_differences(where: str, theirs: Any, ours: Any) -> list[str]:
    try:
        wanted = inspect.signature(theirs).parameters
        had = inspect.signature(ours).parameters
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_POSITIONAL for p in had.values()) and any(
        p.kind is p.VAR_KEYWORD for p in had.values()
    ):
        return []  # it forwards all arguments
    found = []
    positions = [p.name for p in had.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for position, parameter in enumerate(wanted.values()):
        mine = had.get(parameter.name)
        if mine is None:
            found.append(f"{where or 'it'} does not take {parameter.name!r}")
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            if positions[position : position + 1] != [parameter.name]:
                found.append(f"{where or 'it'} does not take {parameter.name!r} at {position + 1}")
            elif parameter.default is not parameter.empty and mine.default is mine.empty:
                found.append(f"{where or 'it'} has no default for {parameter.name!r}")
    required = [
        p.name
        for p in had.values()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in wanted
    ]
    return found + [f"{where or 'it'} also needs {name!r}" for name in required]


def _option_difference(theirs: TorchOption, option: Option) -> str:
    if theirs.is_flag != (option.read is None):
        return "one is a flag and the other is not"
    mine = option.default
    default = None if mine is None and theirs.default == "" else theirs.default  # no value
    if mine not in (default, ()) or (mine == () and default):
        return f"its default is {default!r} there and {mine!r} here"
    missing = set(theirs.names) - set(option.names)
    return f"there is no {', '.join(sorted(missing))}" if missing else ""


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _link(anchor: str) -> str:
    return f"[different](differences.md#{anchor})"


def _value(value: object) -> str:
    if value is None or value in ("", []):
        return ""
    return "off" if value is False else f"`{value}`"


def _type_name(option: TorchOption) -> str:
    if option.is_flag:
        return "flag"
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    return {"int": "integer", "float": "number", "str": "text"}.get(option.kind, "texts")


def main(argv: list[str]) -> int:
    """Print the page, or write it to the file in `argv`."""
    page = Page()
    text = page.text()
    if argv:
        with open(argv[0], "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    for problem in page.problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if page.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
