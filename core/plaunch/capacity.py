"""Messages for when the system has no more processes, threads or open files."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from plaunch.errors import PluginLoadError
from plaunch.parts import DESCRIBE_SHORTAGE, load_part

if TYPE_CHECKING:
    from collections.abc import Callable


TOO_MANY_FILES = (
    "too many open files; raise the limit of open files (ulimit -n) or start fewer workers on this "
    "host"
)


def explain(error: Exception) -> str:
    """Return why the system failed to start a process, with the limit that was reached."""
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:
        return describe_shortage()
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return TOO_MANY_FILES
    return f"the system says {error}" if str(error) else f"the system says {type(error).__name__}"


def describe_shortage() -> str:
    """Return why the system starts no more processes or threads, and what to do."""
    try:
        describe: Callable[[], str] = load_part(DESCRIBE_SHORTAGE)
    except PluginLoadError:
        return "the system gives no more processes or threads"
    return describe()
