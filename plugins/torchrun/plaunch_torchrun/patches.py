"""What a program has replaced in torch's modules, which torchrun looks up at every launch.

Only programs that have called `install` (`plaunch_torchrun.import_hook`) expect that a launch of
plaunch uses it. The names of `EFFECTIVE` are passed on to the modules of this package, which look
them up, too. A launch warns of all others.
"""

from __future__ import annotations

import functools
import logging
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger = logging.getLogger("plaunch")

# Replaced modules, with the names that their replacements look up, or that only callers do.
EFFECTIVE = {
    "torch.distributed.run": frozenset(
        {"config_from_args", "elastic_launch", "get_args_parser", "main", "parse_args", "run"}
    ),
    "torch.distributed.launch": frozenset({"launch", "main", "parse_args"}),
    "torch.distributed.launcher": frozenset({"LaunchConfig", "elastic_launch", "launch_agent"}),
    "torch.distributed.launcher.api": frozenset(
        {"LaunchConfig", "LocalElasticAgent", "elastic_launch", "launch_agent"}
    ),
}

_PROCESSES = "torch.distributed.elastic.multiprocessing.api"
_HANDLER = "get_subprocess_handler"
# Modules that a launch of torchrun uses, and one of plaunch does not.
_UNUSED = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.events",
    "torch.distributed.elastic.events.handlers",
    "torch.distributed.elastic.metrics.api",
    "torch.distributed.elastic.multiprocessing",
    _PROCESSES,
    "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler",
    "torch.distributed.elastic.multiprocessing.tail_log",
    "torch.distributed.elastic.rendezvous.registry",
    *EFFECTIVE,
)
# A mock of `unittest` is not from a library.
_LIBRARIES = sys.stdlib_module_names - {"unittest"} | {
    "plaunch",
    "plaunch_torchrun",
    "torch",
    "typing_extensions",
}
_GENERATED = ("__new__",)  # methods that the interpreter makes for some classes


def find_subprocess_handler() -> Any:
    """Return the function that a program has assigned to torch's `get_subprocess_handler`, or None.

    torchrun calls it to start each program.
    """
    value = getattr(sys.modules.get(_PROCESSES), _HANDLER, None)
    return None if value is None or is_torchs(value) else value


def warn_of_unused(reported: set[str]) -> None:
    """Warn once of each name that a program has replaced, and that has no effect on a launch.

    Args:
        reported: the names of earlier warnings; is extended.
    """
    found = []
    for name in _UNUSED:
        module = sys.modules.get(name)
        if module is not None:
            found += [f"{name}.{each}" for each in replaced_names(module)]
    new = [name for name in found if name not in reported]
    reported.update(new)
    if new:
        logger.warning(
            "this program has replaced %s, which plaunch does not use; it has no effect on the "
            "launch. See docs/callers.md for what has",
            ", ".join(new),
        )


def replaced_names(module: ModuleType) -> Iterator[str]:
    """Yield the names of one of torch's modules that a program has replaced, without an effect.

    Methods of its classes are among them.
    """
    effective = EFFECTIVE.get(module.__name__, frozenset())
    for name, value in sorted(_definitions(module).items()):
        if name.startswith("__") or name in effective or isinstance(value, ModuleType):
            continue
        if (module.__name__, name) == (_PROCESSES, _HANDLER):
            continue
        if name.startswith("_") and not isinstance(value, (FunctionType, type)):
            continue  # state, such as the handlers that public functions set
        if not _is_of_library(value):
            yield name
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for method, function in sorted(vars(value).items()):
                if method not in _GENERATED and not _is_of_library(function):
                    yield f"{name}.{method}"


def _definitions(module: ModuleType) -> Mapping[str, Any]:
    """Return the names of a module of torch; of a replaced one, also those assigned to it.

    A name that torch's module does not have is the program's own.
    """
    load = getattr(type(module), "load_torch_module", None)
    if load is None:
        return vars(module)
    assigned = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    original = vars(module).get("_torch_module")
    if original is None:
        if not assigned:
            return {}
        original = load(module)
    known = {name: value for name, value in assigned.items() if hasattr(original, name)}
    return {**vars(original), **known}


def is_torchs(value: object) -> bool:
    """Whether a function or a class is defined in torch, and not a wrapper of another package."""
    return _packages_of(value) == {"torch"}


def _is_of_library(value: object) -> bool:
    """Whether a value comes from torch or from the libraries that torch uses."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    return _packages_of(value) <= _LIBRARIES


def _packages_of(value: object) -> set[str]:
    """Return the packages that define a value, and what it wraps."""
    found: set[str] = set()
    while isinstance(value, (FunctionType, functools.partial)):
        if isinstance(value, FunctionType):
            # `functools.wraps` copies the name of the module, but not the globals.
            name, value = value.__globals__.get("__name__"), getattr(value, "__wrapped__", None)
        else:
            name, value = "functools", value.func
        found.add(str(name).partition(".")[0])
    if value is not None:
        kind = value if isinstance(value, type) else type(value)
        found.add(kind.__module__.partition(".")[0])
    return found
