"""What checks of a node are made of; the hook `plaunch_doctor_checks` contributes some."""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# How long one question of a check may take, in seconds; the whole check gets a little more.
QUESTION_TIMEOUT = 3.0


class Status(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  # a job may run, but something is likely to go wrong, or to be slow
    PROBLEM = "problem"  # a job with these options does not start, or does not work
    BROKEN = "broken"  # the check itself failed, so that the question is open


@dataclass(frozen=True)
class Finding:
    """One answer of a check.

    Args:
        status: how bad it is.
        what: what was looked at, in one to three words; the line's heading.
        found: what is there, with numbers.
        advice: what to do; empty if all is well.
    """

    status: Status
    what: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class DoctorContext:
    """What the checks are given; new fields may be added.

    Args:
        settings: the fields of the launch's `LaunchConfig` by name; empty if the options do not
            make one.
        options: the parsed options by name, as in `rdzv_endpoint`; empty if they cannot be parsed.
        environ: the environment variables.
        host: the name of this host.
        root: where the file system starts; `/` but in tests.
        timeout: how long one question to the network may take, in seconds.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    host: str = field(default_factory=socket.gethostname)
    root: str = "/"
    timeout: float = QUESTION_TIMEOUT

    @property
    def nproc(self) -> int:
        """The number of workers on this node; 1 if it is not known."""
        return self._number("nproc_per_node", 1)

    @property
    def max_nodes(self) -> int:
        """How many nodes the job has at most; 1 if it is not known."""
        return self._number("max_nodes", 1)

    @property
    def backend(self) -> str:
        """The name of the rendezvous backend; empty if it is not known."""
        return str(self.settings.get("rdzv_backend", ""))

    def path(self, path: str) -> str:
        """Where an absolute `path` is below `root`."""
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str:
        """The text of a file, without space around it; empty if it cannot be read."""
        try:
            with open(self.path(path), encoding="utf-8", errors="replace") as file:
                return file.read(1 << 20).strip()
        except OSError:
            return ""

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def _number(self, name: str, default: int) -> int:
        value = self.settings.get(name, default)
        return value if isinstance(value, int) else default


# Gives what one look at the node has found; may take a few seconds.
Check = Callable[[DoctorContext], Iterable[Finding]]
