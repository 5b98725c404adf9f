"""Starts workers with the function that a program has assigned to torch's name.

`torch.distributed.elastic.multiprocessing.api.get_subprocess_handler` starts each program under
torchrun. Harnesses replace it, to change the command or the environment.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

from plaunch.plugin import hookimpl
from plaunch.process import Starter

from plaunch_torchrun import patches
from plaunch_torchrun.import_hook import is_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.plugin import PluginContext

_REPORTED: set[str] = set()  # one warning for each name in a process


def find_replacements(entrypoint: object) -> list[object]:
    """Return the plugins that use what the program has replaced in torch's modules.

    Warns of what has no effect. Programs that have not called `install` are not asked.
    """
    if not is_installed():
        return []
    patches.warn_of_unused(_REPORTED)
    handler = patches.find_subprocess_handler() if isinstance(entrypoint, str) else None
    return [] if handler is None else [_Plugin(handler)]


class _Plugin:
    """The plugin of a launch whose program has its own `get_subprocess_handler`."""

    def __init__(self, get_handler: Callable[..., Any]) -> None:
        self._get_handler = get_handler

    @hookimpl
    def plaunch_worker_starter(self, context: PluginContext) -> HandlerStarter:
        """Create the starter."""
        del context
        return HandlerStarter(self._get_handler)


class HandlerStarter(Starter):
    """Calls a `get_subprocess_handler` with torch's arguments.

    The process of the handler, its `proc`, is watched and stopped as any other worker.

    Args:
        get_handler: the function.
    """

    def __init__(self, get_handler: Callable[..., Any]) -> None:
        self._get_handler = get_handler
        # This process is bound meanwhile. Older versions of torch have no such parameter.
        self._more = {"numa_options": None} if _takes(get_handler, "numa_options") else {}

    def __str__(self) -> str:
        return f"get_subprocess_handler of this program ({self._get_handler!r})"

    def start(
        self,
        local_rank: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: int | None,
        stderr: int | None,
        pass_fds: Sequence[int] = (),
        binding: Any = None,
    ) -> Any:
        """Call the function, and return the process of its handler."""
        del pass_fds
        with contextlib.nullcontext() if binding is None else binding.applied():
            handler = self._get_handler(
                entrypoint=command[0],
                args=tuple(command[1:]),
                env=dict(env),
                stdout=_path(stdout),
                stderr=_path(stderr),
                local_rank_id=local_rank,
                **self._more,
            )
        return handler.proc  # the handler's own files of the streams are closed with it


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name; also if that is unknown."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    kinds = {parameter.kind for parameter in parameters.values()}
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _path(fd: int | None) -> str:
    """Return a path for torch's handlers, which open one to write; empty to inherit the stream."""
    return "" if fd is None else f"/dev/fd/{fd}"
