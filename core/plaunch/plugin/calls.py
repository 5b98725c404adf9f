"""Saying whose fault it is when a chosen component fails."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError, PluginError
from plaunch.process.failures.error_file import text_of_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from plaunch.plugin.registry import Kind


def one_line(error: BaseException) -> str:
    """An exception as one line: its type and what it says."""
    text = " ".join(text_of_error(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextlib.contextmanager
def blamed(kind: Kind[Any], name: str, origin: str = "") -> Iterator[None]:
    """Run a component's code; what it raises names the component, and `origin`, where it is from.

    plaunch's own exceptions pass: whoever raises them has said what is wrong. So does Ctrl-C.

    Raises:
        PluginError: the component raised anything else, such as SystemExit, which must not end the
            launch as if all were well.
    """
    try:
        yield
    except (PlaunchError, KeyboardInterrupt):
        raise
    except BaseException as error:
        source = f"({kind.flag}) of {origin}" if origin else f"({kind.flag})"
        raise PluginError(f"{kind.label} {name!r} {source} failed: {one_line(error)}") from error
