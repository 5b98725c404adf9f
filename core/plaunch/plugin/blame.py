"""Saying whose fault it is when a chosen component fails."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from plaunch.plugin.registry import Kind


@contextlib.contextmanager
def blamed(kind: Kind[Any], name: str, origin: str = "") -> Iterator[None]:
    """Run a component's code; what it raises names the component, and `origin`, where it is from.

    plaunch's own exceptions pass: whoever raises them has said what is wrong.

    Raises:
        PluginError: the component raised anything else.
    """
    try:
        yield
    except PlaunchError:
        raise
    except Exception as error:
        source = f"({kind.flag}) of {origin}" if origin else f"({kind.flag})"
        raise PluginError(
            f"{kind.label} {name!r} {source} failed: {type(error).__name__}: {error}"
        ) from error
