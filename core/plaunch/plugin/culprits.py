"""Whose code it is that runs, or that has failed."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from plaunch.errors import PluginError
from plaunch.plugin.calls import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType


class Culprits:
    """The plugins of a launch that are not plaunch's own, by the package that each is in."""

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}
        self._packages: dict[str, str] = {}

    def note(self, module: str, who: str) -> None:
        """Know that code in `module`, and what else is in its package, is that of the plugin `who`.

        The first plugin of a package stands for what is no plugin itself. A namespace package, such
        as `google`, is that of many, and no plugin's.
        """
        self._modules.setdefault(module, who)
        package = module.rpartition(".")[0]
        if package:
            self._packages.setdefault(package, who)

    def of_error(self, error: BaseException) -> str | None:
        """The plugin in whose code an exception was raised, or that has called what raised it."""
        frames = []
        traceback = error.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        for frame in reversed(frames):
            who = self._owner(frame)
            if who is not None:
                return who
        return None

    def of_stack(self, frame: FrameType | None) -> tuple[str, CodeType, int] | None:
        """The plugin that has called, with the code and the line at which; None if none has."""
        while frame is not None:
            who = self._owner(frame)
            if who is not None:
                return who, frame.f_code, frame.f_lineno
            frame = frame.f_back
        return None

    @contextlib.contextmanager
    def refusing_exits(self) -> Iterator[None]:
        """Run a launch, which `sys.exit` in a plugin does not end as if all were well.

        Raises:
            PluginError: a plugin has called `sys.exit`.
        """
        try:
            yield
        except SystemExit as error:
            who = self.of_error(error)
            if who is None:
                raise  # a wish of the program that launches
            raise PluginError(f"{who} has failed: {one_line(error)}") from error

    def _owner(self, frame: FrameType) -> str | None:
        name = frame.f_globals.get("__name__")
        while isinstance(name, str) and name:
            if name in self._modules:
                return self._modules[name]
            if name in self._packages and not _is_shared(name):
                return self._packages[name]
            name = name.rpartition(".")[0]
        return None


def _is_shared(package: str) -> bool:
    """Whether other distributions may have code in a package: a namespace has no file."""
    module = sys.modules.get(package)
    return module is not None and getattr(module, "__file__", None) is None
