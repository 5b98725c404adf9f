"""Whose code has failed, or has ended the launcher without a message."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from plaunch.errors import ExitCode, PluginError
from plaunch.plugin.calls import one_line
from plaunch.process.launcher_variables import owns_process, reported_exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

logger = logging.getLogger("plaunch")


class Culprits:
    """The plugins of a launch that are not plaunch's own, by the package that each is in."""

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}
        self._packages: dict[str, str] = {}

    def note(self, module: str, who: str) -> None:
        """Record that `module`, and the rest of its package, is code of the plugin `who`.

        The first plugin of a package stands for what is no plugin itself. A namespace package, such
        as `google`, is that of many, and no plugin's.
        """
        self._modules.setdefault(module, who)
        package = module.rpartition(".")[0]
        if package:
            self._packages.setdefault(package, who)

    def of_error(self, error: BaseException) -> str | None:
        """The plugin whose code raised an exception, or called the code that raised it."""
        found = None
        traceback = error.__traceback__
        while traceback is not None:
            found = self._owner(traceback.tb_frame) or found
            traceback = traceback.tb_next
        return found

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


def explained_culprits() -> Culprits:
    """Make a list of plugins; in the process of the command line, say who of them ends it.

    A process that is not plaunch's own is left as it is.
    """
    culprits = Culprits()
    if owns_process():
        if not isinstance(os._exit, ExplainedExit):
            os._exit = ExplainedExit(os._exit)
        os._exit.known.append(culprits)
    return culprits


def find_culprit(frame: FrameType) -> tuple[str, CodeType, int] | None:
    """The plugin that has called, with the code and the line; only where exits are explained."""
    known = os._exit.known if isinstance(os._exit, ExplainedExit) else []
    return next(filter(None, (culprits.of_stack(frame) for culprits in known)), None)


class ExplainedExit:
    """Stands for `os._exit`, which ends a process as it is; in forked ones it says nothing."""

    def __init__(self, end: Callable[[int], NoReturn]) -> None:
        self.known: list[Culprits] = []
        self._end = end
        self._launcher = os.getpid()

    def __call__(self, status: int) -> NoReturn:
        """End the process; if a plugin does this, log which one, and end it as a plugin error.

        The plugin's own code might be 0, which would be the success of a job that has none.
        """
        found = None
        if os.getpid() == self._launcher:
            with contextlib.suppress(Exception):
                found = find_culprit(sys._getframe(1))
        if found is not None:
            with contextlib.suppress(Exception):
                self._explain(found, status)
            status = reported_exit_code(ExitCode.PLUGIN)
        self._end(status)

    def _explain(self, found: tuple[str, CodeType, int], status: int) -> None:
        who, code, line = found
        logger.error(
            "%s has ended the launcher with os._exit(%r), in %s (%s:%d), which ended the job. A "
            "plugin must report an error by raising an exception",
            who,
            status,
            code.co_name,
            code.co_filename,
            line,
        )
