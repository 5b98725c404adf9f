"""Finds the plugin whose code raised an exception."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from plaunch.errors import PluginError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Culprits:
    """Finds the third-party plugin whose code raised an exception, by the traceback.

    For code that plaunch calls without the guard, such as methods of a rendezvous handler.
    plaunch's own plugins are not recorded: a bug in one of them is an internal error.
    """

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}
        self._packages: dict[str, str] = {}

    def note(self, module: str, who: str) -> None:
        """Record that `module`, and the rest of its package, belongs to the plugin `who`.

        If a package has several plugins, the first one is named for its other modules. A namespace
        package, such as `google`, belongs to no plugin.
        """
        self._modules.setdefault(module, who)
        package = module.rpartition(".")[0]
        if package:
            self._packages.setdefault(package, who)

    def of_error(self, error: BaseException) -> str | None:
        """Return the plugin whose code raised an exception, or called the code that did."""
        found = None
        traceback = error.__traceback__
        while traceback is not None:
            found = self._owner(traceback.tb_frame) or found
            traceback = traceback.tb_next
        return found

    @contextlib.contextmanager
    def refusing_exits(self) -> Iterator[None]:
        """Run a launch; convert `sys.exit` in a plugin to an error.

        Raises:
            PluginError: a plugin called `sys.exit`.
        """
        try:
            yield
        except SystemExit as error:
            who = self.of_error(error)
            if who is None:
                raise  # called by the program that launches
            raise PluginError(f"{who} failed: {one_line(error)}") from error

    def _owner(self, frame: FrameType) -> str | None:
        name = frame.f_globals.get("__name__")
        while isinstance(name, str) and name:
            if name in self._modules:
                return self._modules[name]
            if name in self._packages and not _is_namespace(name):
                return self._packages[name]
            name = name.rpartition(".")[0]
        return None


def _is_namespace(package: str) -> bool:
    """Whether a package is a namespace package, which has no file."""
    module = sys.modules.get(package)
    return module is not None and getattr(module, "__file__", None) is None
