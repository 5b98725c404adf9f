"""The types of the doctor's checks, also for the hook `plaunch_doctor_checks`."""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Seconds for one network request of a check; the whole check has a little more.
QUESTION_TIMEOUT = 3.0


class Status(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # a job may run, but is likely to fail or to be slow
    PROBLEM = "problem"  # a job with these options does not start or work
    BROKEN = "broken"  # the check itself failed; the result is unknown


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Args:
        status: its severity.
        what: what was checked, in one to three words; the line's heading.
        found: what was found, with numbers.
        advice: what to do; empty if nothing is wrong.
    """

    status: Status
    what: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class DoctorContext:
    """The context of the checks; new fields may be added.

    Args:
        settings: the fields of the launch's `LaunchConfig` by name; empty if the options are
            invalid.
        options: the parsed options by name, as in `rdzv_endpoint`; empty if they cannot be parsed.
        environ: the environment variables.
        host: the name of this host.
        root: the root of the file system; `/` except in tests.
        timeout: seconds for one network request.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    host: str = field(default_factory=socket.gethostname)
    root: str = "/"
    timeout: float = QUESTION_TIMEOUT

    @property
    def nproc(self) -> int:
        """The number of workers on this node; 1 if unknown."""
        return self._number("nproc_per_node", 1)

    @property
    def max_nodes(self) -> int:
        """The largest number of nodes of the job; 1 if unknown."""
        return self._number("max_nodes", 1)

    @property
    def backend(self) -> str:
        """The name of the rendezvous backend; empty if unknown."""
        return str(self.settings.get("rdzv_backend", ""))

    def path(self, path: str) -> str:
        """Return an absolute path below `root`."""
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str:
        """Return the text of a file, stripped; empty if it cannot be read."""
        try:
            with open(self.path(path), encoding="utf-8", errors="replace") as file:
                return file.read(1 << 20).strip()
        except OSError:
            return ""

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def _number(self, name: str, default: int) -> int:
        value = self.settings.get(name, default)
        return value if isinstance(value, int) else default


# Checks the node, and returns its findings; may take a few seconds.
Check = Callable[[DoctorContext], Iterable[Finding]]
