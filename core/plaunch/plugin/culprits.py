"""Whose code it is that runs, or that has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType


class Culprits:
    """The plugins of a launch that are not plaunch's own, by the package that each is in."""

    def __init__(self) -> None:
        self._plugins: dict[str, str] = {}

    def note(self, module: str, who: str) -> None:
        """Know that code in the package that has `module` is that of the plugin `who`.

        The first plugin of a package stands for it.
        """
        self._plugins.setdefault(module.rpartition(".")[0] or module, who)

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

    def _owner(self, frame: FrameType) -> str | None:
        name = frame.f_globals.get("__name__")
        while isinstance(name, str) and name:
            if name in self._plugins:
                return self._plugins[name]
            name = name.rpartition(".")[0]
        return None
