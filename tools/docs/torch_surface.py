"""Reads the options, variables and public names of torch's launcher from its sources.

It does not import torch, so it can read wheels that this machine cannot run.
`python tools/docs/torch_surface.py PATH` reads a wheel or an unpacked `torch` folder, and writes
what it finds to `tests/data/torch-VERSION.json`, from which docs/compatibility.md is made.
"""

from __future__ import annotations

import ast
import enum
import importlib.util
import json
import re
import sys
import types
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[2] / "tests/data"

_PACKAGES = ("torch.distributed.elastic", "torch.distributed.launcher")
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.argparse_util",
    "torch.numa.binding",
)
_OPTIONS = "torch.distributed.run"  # and the function in it:
_PARSER = "get_args_parser"

_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
_OF_TORCH = re.compile(r"TORCH(?:_?ELASTIC|_NCCL|_DISABLE|_WORKER)_[A-Z_]+")
_LOOKUPS = ("getenv", "get", "pop", "setdefault")  # of the environment

_Folder: TypeAlias = "Path | zipfile.Path"
_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


class TorchOption:
    """An option of torchrun.

    Args:
        names: its spellings.
        default: its default.
        kind: the name of its value's type; empty for a flag.
        choices: its allowed values; empty if unrestricted.
        has_variable: whether a `PET_*` variable gives its default.
    """

    def __init__(
        self, names: list[str], default: Any, kind: str, choices: list[str], has_variable: bool
    ) -> None:
        self.names = [name for name in names if "_" not in name]
        self.long = max(self.names, key=len)
        self.dest = self.long.lstrip("-").replace("-", "_")
        self.default = default
        self.kind = kind
        self.choices = choices
        self.has_variable = has_variable

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return not self.kind


@dataclass(frozen=True)
class TorchSurface:
    """The launcher's surface in one version of torch.

    Args:
        record: the result of `read_sources`, as in the JSON file.
    """

    record: dict[str, Any]

    @property
    def version(self) -> str:
        """The version of torch, without its build suffix."""
        return str(self.record["version"])

    @cached_property
    def options(self) -> dict[str, TorchOption]:
        """The options by their destination."""
        made = (TorchOption(**fields) for fields in self.record["options"])
        return {option.dest: option for option in made}

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the launcher reads, or gives to workers."""
        return frozenset(self.record["variables"])

    @cached_property
    def modules(self) -> dict[str, dict[str, Any]]:
        """Stubs of the public names of each module: same members and signatures, no code."""
        return {
            module: {name: _stand_in(module, name, form) for name, form in names.items()}
            for module, names in self.record["modules"].items()
        }


def installed() -> TorchSurface:
    """Return the surface of the installed torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("torch is not installed")
    return read_sources(Path(spec.submodule_search_locations[0]))


def recorded(version: str) -> TorchSurface:
    """Return the surface of another version, as recorded by `main`."""
    return TorchSurface(json.loads((DATA / f"torch-{version}.json").read_text("utf-8")))


def read_sources(path: Path) -> TorchSurface:
    """Read a wheel, an unpacked `torch` folder, or the folder that has one."""
    root: _Folder = path
    if path.is_file():
        root = zipfile.Path(path)
    if (root / "torch").is_dir():
        root = root / "torch"
    return _Reader(root).read()


class _Reader:
    """Reads the sources below one `torch` folder."""

    def __init__(self, root: _Folder) -> None:
        self._trees = dict(self._parse(root))
        version = ast.parse((root / "version.py").read_text("utf-8"))
        self._version = str(_constants(version)["__version__"]).partition("+")[0]
        self._classes = {
            statement.name: statement
            for tree, _ in self._trees.values()
            for statement in _statements(tree)
            if isinstance(statement, ast.ClassDef)
        }

    def read(self) -> TorchSurface:
        """Read everything."""
        modules = {name: self._names(*known) for name, known in sorted(self._trees.items())}
        return TorchSurface(
            {
                "version": self._version,
                "options": list(self._options()),
                "variables": sorted(
                    {found for tree, _ in self._trees.values() for found in _variables(tree)}
                ),
                "modules": {name: names for name, names in modules.items() if names},
            }
        )

    def _parse(self, root: _Folder) -> Iterator[tuple[str, tuple[ast.Module, bool]]]:
        def walk(folder: _Folder, name: str) -> Iterator[tuple[str, _Folder, bool]]:
            yield name, folder / "__init__.py", True
            for entry in folder.iterdir():
                if entry.name.startswith("_"):
                    continue
                if entry.is_dir() and (entry / "__init__.py").is_file():
                    yield from walk(entry, f"{name}.{entry.name}")
                elif entry.name.endswith(".py"):
                    yield f"{name}.{entry.name[:-3]}", entry, False

        def below_root(name: str) -> _Folder:
            folder = root
            for part in name.split(".")[1:]:
                folder = folder / part
            return folder

        files = [found for name in _PACKAGES for found in walk(below_root(name), name)]
        for name in _MODULES:
            package, _, last = name.rpartition(".")
            files.append((name, below_root(package) / f"{last}.py", False))
        for name, file, is_package in files:
            yield name, (ast.parse(file.read_text("utf-8")), is_package)

    # --- names ------------------------------------------------------------------------------------

    def _names(self, tree: ast.Module, is_package: bool) -> dict[str, Any]:
        constants = _constants(tree)
        defined = {
            statement.name: statement
            for statement in _statements(tree)
            if isinstance(statement, ast.ClassDef | ast.FunctionDef)
        }
        listed = constants.get("__all__")
        if listed is None:
            listed = [name for name in defined if not name.startswith("_")]
        found: dict[str, Any] = {}
        for name in sorted(listed):
            statement = defined.get(name)
            if isinstance(statement, ast.ClassDef):
                found[name] = self._class(statement)
            elif statement is not None:
                found[name] = {"takes": _parameters(statement.args)}
            elif name in constants and not is_package:  # otherwise another module defines it
                found[name] = {"value": constants[name]}
        return found

    def _class(self, statement: ast.ClassDef) -> dict[str, Any]:
        line = list(self._bases(statement))
        words = {ast.unparse(base).rpartition(".")[2] for one in line for base in one.bases}
        if any("Enum" in word or word == "IntFlag" for word in words):
            return {"values": _constants(statement)}
        members: dict[str, str | None] = {}
        for one in line:
            for name, form in _members(one).items():
                members.setdefault(name, form)
        takes = members.get("__init__")
        if takes is None and any(_is_dataclass(one) for one in line):
            takes = _fields(line)
        if takes is None and not words & {"Exception", "ImportError"}:
            takes = "self"
        public = {name: form for name, form in members.items() if not name.startswith("_")}
        return {"takes": takes, "members": dict(sorted(public.items()))}

    def _bases(self, statement: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """Yield the class and its bases that the launcher defines."""
        yield statement
        for base in statement.bases:
            known = self._classes.get(ast.unparse(base).rpartition(".")[2])
            if known is not None:
                yield from self._bases(known)

    # --- options ----------------------------------------------------------------------------------

    def _options(self) -> Iterator[dict[str, Any]]:
        tree, _ = self._trees[_OPTIONS]
        (parser,) = (
            statement
            for statement in _statements(tree)
            if isinstance(statement, ast.FunctionDef) and statement.name == _PARSER
        )
        for call in ast.walk(parser):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            names = [value for value in map(_literal, call.args) if isinstance(value, str)]
            if call.func.attr != "add_argument" or not names[0].startswith("-"):
                continue
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            action = ast.unparse(given["action"]) if "action" in given else ""
            is_flag = action == "check_env"
            kind = ast.unparse(given["type"]) if "type" in given else "str"
            yield {
                "names": names,
                "default": False if is_flag else _literal(given.get("default")),
                "kind": "" if is_flag else kind,
                "choices": self._choices(given.get("choices"), parser),
                "has_variable": action in ("env", "check_env"),
            }

    def _choices(self, node: ast.expr | None, function: ast.FunctionDef) -> list[str]:
        if isinstance(node, ast.ListComp):  # over the members of an enumeration
            name = ast.unparse(node.generators[0].iter).lstrip("_")
            return [str(value) for value in _constants(self._classes[name]).values()]
        if isinstance(node, ast.Name):  # a variable of the function
            assigned = (one for one in ast.walk(function) if isinstance(one, ast.Assign))
            same = [one.value for one in assigned if ast.unparse(one.targets[0]) == node.id]
            found = [value for value in map(_literal, same) if isinstance(value, list)]
            return found[0] if found else []
        found_list = _literal(node)
        return found_list if isinstance(found_list, list) else []


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those inside `if` and `try`."""
    waiting = list(tree.body)
    while waiting:
        statement = waiting.pop(0)
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            handlers = getattr(statement, "handlers", [])
            inner = [*statement.body, *statement.orelse]
            waiting = [*inner, *(one for handler in handlers for one in handler.body), *waiting]


def _constants(owner: ast.Module | ast.ClassDef) -> dict[str, Any]:
    """Return the literals assigned to names; None for other values."""
    found: dict[str, Any] = {}
    for statement in owner.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found[statement.targets[0].id] = _literal(statement.value)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = _literal(statement.value)
    # An enumeration may combine members that come before: ALL = OUT | ERR.
    for statement in owner.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
            left, right = statement.value.left, statement.value.right
            if isinstance(left, ast.Name) and isinstance(right, ast.Name):
                found[ast.unparse(statement.targets[0])] = found[left.id] | found[right.id]
    return found


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _members(statement: ast.ClassDef) -> dict[str, str | None]:
    """Return a class's methods with their parameters, and its other attributes with None."""
    found: dict[str, str | None] = {}
    for one in statement.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            words = {ast.unparse(decorator).rpartition(".")[2] for decorator in one.decorator_list}
            if words & {"property", "cached_property", "setter"}:
                found[one.name] = None
                continue
            arguments = one.args
            if "classmethod" in words:
                (arguments.posonlyargs or arguments.args).pop(0)
            found[one.name] = _parameters(arguments)
        elif isinstance(one, ast.Assign):
            found.update({ast.unparse(target): None for target in one.targets})
        elif isinstance(one, ast.AnnAssign) and one.value and not _is_field(one.value):
            found[ast.unparse(one.target)] = None
    return found


def _is_dataclass(statement: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(one) for one in statement.decorator_list)


def _is_field(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "field"


def _fields(line: list[ast.ClassDef]) -> str:
    """Return the parameters of a dataclass; `line` has the class and its bases."""
    found: dict[str, str] = {}
    for owner in reversed(line):
        for one in owner.body:
            if not isinstance(one, ast.AnnAssign) or "ClassVar" in ast.unparse(one.annotation):
                continue
            name, value = ast.unparse(one.target), one.value
            given: dict[str | None, ast.expr] = {}
            if isinstance(value, ast.Call) and _is_field(value):
                given = {keyword.arg: keyword.value for keyword in value.keywords}
                value = given.get("default") or given.get("default_factory")
            if _literal(given.get("init")) is not False:
                found[name] = name if value is None else f"{name}=..."
    return ", ".join(["self", *found.values()])


def _parameters(arguments: ast.arguments) -> str:
    """Return a signature without annotations, and with `...` for every default."""
    bare = ast.parse("def f(): ...").body[0]
    assert isinstance(bare, ast.FunctionDef)  # noqa: S101 - for the type checker

    def named(given: list[ast.arg]) -> list[ast.arg]:
        return [ast.arg(one.arg) for one in given]

    def only(given: ast.arg | None) -> ast.arg | None:
        return None if given is None else ast.arg(given.arg)

    dots = ast.Constant(...)
    bare.args = ast.arguments(
        posonlyargs=named(arguments.posonlyargs),
        args=named(arguments.args),
        vararg=only(arguments.vararg),
        kwonlyargs=named(arguments.kwonlyargs),
        kw_defaults=[None if one is None else dots for one in arguments.kw_defaults],
        kwarg=only(arguments.kwarg),
        defaults=[dots for _ in arguments.defaults],
    )
    return ast.unparse(bare.args)


def _variables(tree: ast.Module) -> Iterator[str]:
    """Return variables that are read from or written to an environment, and torch's own."""
    for node in ast.walk(tree):
        names: list[ast.expr | None] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_environment = node.func.attr == "getenv" or "env" in ast.unparse(node.func.value)
            if node.func.attr in _LOOKUPS and of_environment:
                names = [*node.args[:1]]
        elif isinstance(node, ast.Subscript) and "env" in ast.unparse(node.value):
            names = [node.slice]
        elif isinstance(node, ast.Dict):
            names = list(node.keys)
        elif isinstance(node, ast.Constant) and _OF_TORCH.fullmatch(str(node.value)):
            yield str(node.value)
        for name in names:
            value = _literal(name)
            if isinstance(value, str) and _VARIABLE.fullmatch(value):
                yield value


def _stand_in(module: str, name: str, form: dict[str, Any]) -> Any:
    """Create a stub from `form`."""
    if "value" in form:
        return form["value"] if isinstance(form["value"], str) else object()
    if "values" in form:
        made = enum.Enum(name, form["values"], module=module)  # type: ignore[misc]
    elif "members" not in form:
        made = _function(form["takes"])
    else:
        base = Exception if form["takes"] is None else object
        space = {one: _function(text) if text else None for one, text in form["members"].items()}
        if form["takes"] is not None:
            space["__init__"] = _function(form["takes"])
        made = types.new_class(name, (base,), exec_body=lambda body: body.update(space))
    made.__module__ = module
    return made


def _function(parameters: str) -> Any:
    return eval(f"lambda {parameters}: None", {})  # noqa: S307 - from the record in this folder


def main(argv: list[str]) -> int:
    """Record the surface of the torch whose wheel or folder is in `argv`."""
    if len(argv) != 1:
        sys.stderr.write(f"usage: {sys.argv[0]} WHEEL-OR-FOLDER\n")
        return 2
    surface = read_sources(Path(argv[0]))
    path = DATA / f"torch-{surface.version}.json"
    path.write_text(json.dumps(surface.record, indent=1) + "\n", "utf-8")
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
