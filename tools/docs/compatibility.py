"""Generates docs/compatibility.md by comparing plaunch with the installed torch.

`python tools/docs/compatibility.py docs/compatibility.md` writes it; without an argument it prints
it. Errors in the tables of `torchrun_names` are printed on stderr, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torchrun_names as names
from plaunch.cli import installed_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from plaunch.options import Option

COMMAND = "python tools/docs/compatibility.py docs/compatibility.md"
# Rooms of torch's that are a launcher's; those below `elastic` are found.
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.argparse_util",
    "torch.distributed.launcher.api",
    names.NUMA,
)
# Where plaunch itself has names that torchrun has, too.
_OWN = (
    "plaunch.agent",
    "plaunch.cli",
    "plaunch.events",
    "plaunch.process",
    "plaunch.rendezvous",
    "plaunch_devices",
    "plaunch_functions",
    "plaunch_network",
    "plaunch_timer",
    "plaunch",
)
_SHOWN = 3  # differences of one name; the link leads to the reason
_INTRODUCTION = f"""\
# Compatibility with torchrun

Every option, variable and public name of torchrun, and whether plaunch has the same. If the status
is *different*, the link explains why and how. `{COMMAND}`
generates this page from the source of plaunch and torch {{version}}; a test compares it with both.
"""
_NAMES = """\
## Public names

They are in `plaunch_torchrun`. Its modules have the names of torch's, without `torch.distributed`;
each package below `elastic` is one module. Many names are also plaunch's own, as the second column
shows. A name that one module of torch imports from another is listed where it is defined.
"""


class Page:
    """The page, and what is wrong with the tables that it is made of."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def text(self) -> str:
        """The whole page."""
        import torch

        version = str(torch.__version__).partition("+")[0]
        parts = [
            _INTRODUCTION.format(version=version),
            "## Options\n\nWrite each option with dashes or underscores. If its variable is set, "
            "that is its default.\n",
            _table(
                ("option", "variable", "default", "type", "status"),
                self._options(),
            ),
            "Options that torchrun does not have: "
            + ", ".join(f"`{name}`" for name in sorted(self._own_options()))
            + ".\n",
            "## Environment variables\n",
            _table(("variable", "torchrun", "status"), self._variables()),
            _NAMES,
            *self._names(),
        ]
        return "\n".join(parts)

    # --- options ----------------------------------------------------------------------------------

    def _options(self) -> Iterator[tuple[str, ...]]:
        from torch.distributed.run import get_args_parser

        ours = {option.dest: option for option in installed_table((), {})}
        for action in get_args_parser()._actions:
            if not action.option_strings or isinstance(action, argparse._HelpAction):
                continue
            spelt = [name for name in action.option_strings if "_" not in name]
            long = max(spelt, key=len)
            shown = ", ".join(f"`{name}`" for name in spelt)
            option = ours.get(action.dest)
            kind = "flag" if action.nargs == 0 else _type_name(action)
            variable = f"`PET_{action.dest.upper()}`"
            if type(action).__name__ not in ("env", "check_env"):
                variable += " (not in torchrun)"
            row = (shown, variable, _value(action.default), kind)
            yield (*row, self._option_status(long, action, option))

    def _option_status(self, name: str, action: argparse.Action, option: Option | None) -> str:
        if option is None:
            reason = names.OPTIONS_MISSING.get(name)
            if reason is None:
                self.problems.append(
                    f"torchrun's option {name} is not in plaunch.cli.options; add it, or say in "
                    "OPTIONS_MISSING why it is not"
                )
            return f"missing: {reason}"
        differs = _option_difference(action, option)
        if name in names.OPTIONS_DIFFERENT:
            return _link(names.OPTIONS_DIFFERENT[name])
        if differs:
            self.problems.append(
                f"torchrun's option {name}: {differs}; make it the same, or put it into "
                "OPTIONS_DIFFERENT"
            )
        return "same"

    def _own_options(self) -> set[str]:
        from torch.distributed.run import get_args_parser

        theirs = {action.dest for action in get_args_parser()._actions}
        return {option.names[-1] for option in installed_table((), {}) if option.dest not in theirs}

    # --- variables --------------------------------------------------------------------------------

    def _variables(self) -> Iterator[tuple[str, ...]]:
        for name in sorted(_variables_of_torch() - set(names.VARIABLES)):
            self.problems.append(
                f"torch's launcher knows the variable {name}; add a row to VARIABLES"
            )
        for name, (use, status, more) in sorted(names.VARIABLES.items()):
            shown = {"same": "same", "different": _link(more)}.get(status, f"missing: {more}")
            yield f"`{name}`", use, shown

    # --- names ------------------------------------------------------------------------------------

    def _names(self) -> Iterator[str]:
        listed = {*names.DIFFERENT, *names.MISSING}
        for module_name, public in sorted(public_names().items()):
            whole = f"{module_name}.*"
            if whole in names.MISSING:
                listed.discard(whole)
                yield f"### {module_name}\n\nMissing: {names.MISSING[whole]}.\n"
                continue
            if public is None:
                self.problems.append(f"{module_name} cannot be imported; no name of it is compared")
            rows = []
            for name, thing in sorted((public or {}).items()):
                dotted = f"{module_name}.{name}"
                rows.append((f"`{name}`", *self._name(dotted, thing)))
                listed.discard(dotted)
            if rows:
                yield f"### {module_name}\n\nIn `{names.home(module_name)}`:\n"
                yield _table(("name", "the same as", "status"), rows)
        self.problems += [f"{dotted} has a row, but torch has no such name" for dotted in listed]

    def _name(self, dotted: str, thing: object) -> tuple[str, str]:
        module, _, name = dotted.rpartition(".")
        home = names.home(module)
        ours = getattr(importlib.import_module(home), name, None)
        reason = names.MISSING.get(dotted)
        if ours is None:
            if reason is None:
                self.problems.append(
                    f"{dotted} is a public name of torch's launcher, which {home} does not have; "
                    "add it there, or say in MISSING of torchrun_names.py why it is not"
                )
            return "", f"missing: {reason}"
        if reason is not None:
            self.problems.append(f"{dotted} is in MISSING, and {home} has it")
        found = differences(thing, ours)
        if dotted in names.DIFFERENT:
            more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            details = f": {'; '.join(found[:_SHOWN])}{more}" if found else ""
            return _own_name(name, ours), f"{_link(names.DIFFERENT[dotted])}{details}"
        self.problems += [f"{dotted}: {text}" for text in found]
        return _own_name(name, ours), "same"


def _own_name(name: str, thing: object) -> str:
    """What else plaunch calls it, in the reference of its names."""
    homes = (home for home in _OWN if getattr(importlib.import_module(home), name, None) is thing)
    return next((f"`{home}.{name}`" for home in homes), "")


def public_names() -> dict[str, dict[str, object] | None]:
    """The public names of torch's launcher by module; None for a module that does not import."""
    elastic = importlib.import_module("torch.distributed.elastic")
    found = [m.name for m in pkgutil.walk_packages(elastic.__path__, f"{elastic.__name__}.")]
    return {
        name: _public(name)
        for name in [*found, *_MODULES]
        if not name.rpartition(".")[2].startswith("_")
    }


def _public(name: str) -> dict[str, object] | None:
    try:
        module: ModuleType = importlib.import_module(name)
    except ImportError:
        return None
    listed: Iterable[str] | None = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            key
            for key, value in vars(module).items()
            if not key.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__ == name
        ]
    things = {key: getattr(module, key) for key in listed}
    # A package repeats what its modules define, and has a row for what is its own.
    return {key: thing for key, thing in things.items() if _home_of(thing, name) == name}


def _home_of(thing: object, module: str) -> str:
    home = getattr(thing, "__module__", None)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return str(home)
    # A constant, or an object: it is at home in the deepest module that lists it.
    return module if not _is_package(module) else ""


def _is_package(module: str) -> bool:
    return hasattr(sys.modules[module], "__path__")


def differences(theirs: Any, ours: Any) -> list[str]:
    """What a caller or a subclass of `theirs` does not find in `ours`; empty if it finds all."""
    if isinstance(theirs, str):
        return [] if ours == theirs else [f"it is {ours!r} instead of {theirs!r}"]
    if isinstance(theirs, type) and not isinstance(ours, type):
        return ["it is no class"]
    if isinstance(theirs, type) and issubclass(theirs, enum.Enum):
        mine = {member.name: member.value for member in ours}
        return [
            f"there is no member {member.name}={member.value!r}"
            for member in theirs
            if mine.get(member.name) != member.value
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
        return []  # it passes on whatever it is given
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


def _option_difference(action: argparse.Action, option: Option) -> str:
    if (action.nargs == 0) != (option.read is None):
        return "one is a flag and the other is not"
    mine, theirs = option.default, action.default
    if mine not in (theirs, ()) or (mine == () and theirs):
        return f"its default is {theirs!r} there and {mine!r} here"
    missing = {name for name in action.option_strings if "_" not in name} - set(option.names)
    return f"there is no {', '.join(sorted(missing))}" if missing else ""


def _variables_of_torch() -> set[str]:
    """The variables of its own that torch's launcher mentions in its source."""
    import torch

    root = Path(torch.__file__).parent / "distributed"
    files = [*(root / "elastic").rglob("*.py"), root / "run.py", *(root / "launcher").glob("*.py")]
    pattern = re.compile(r"""["'](TORCH(?:_?ELASTIC|_NCCL|_DISABLE|_WORKER)_[A-Z_]+)["']""")
    return {name for file in files for name in pattern.findall(file.read_text("utf-8"))}


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _link(anchor: str) -> str:
    return f"[different](differences.md#{anchor})"


def _value(value: object) -> str:
    if value is None or value in ("", []):
        return ""
    return "off" if value is False else f"`{value}`"


def _type_name(action: argparse.Action) -> str:
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    known: dict[Any, str] = {int: "integer", float: "number", str: "text", None: "text"}
    return known.get(action.type, "texts")


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
