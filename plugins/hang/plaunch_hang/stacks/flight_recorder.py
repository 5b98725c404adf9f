"""The extension behind `--flight-recorder`: what torch's flight recorder needs in workers."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError

from plaunch_hang.stacks.telling import find_run_dir
from plaunch_hang.stacks.torch_server import FOLDER as SOCKETS
from plaunch_hang.stacks.torch_server import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plaunch.agent import Control, RunResult, WorkerInfo
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

logger = logging.getLogger("plaunch")

FOLDER = "flight_recorder"  # of the folder of a run; below it is one for each round
PREFIX = "rank_"  # of the files; torch adds the rank
_ENTRIES = 2000  # operations that are kept, as by default in torch 2.13; older ones keep none
_LONGEST_PATH = 107  # bytes that the path of a Unix socket may have

# One setting under its names in newer and older versions of torch. The newer ones know the older
# names as well, but write a warning for each.
_OLDER = (2, 9)
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMPS = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


class FlightRecorder:
    """Sets variables for the workers of one launch; what the user has set stays as it is.

    Args:
        context: the launch.
        environ: what the workers inherit.
    """

    takes_events = False

    def __init__(self, context: PluginContext, environ: Mapping[str, str] = os.environ) -> None:
        self._context = context
        self._environ = environ
        self._sockets = ""  # the folder of the workers' sockets, once there is one
        self._folders: set[str] = set()  # of the files of rounds
        self._has_warned = False
        self._knows_old_names = find_torch_version() < _OLDER

    def environment(self, worker: WorkerInfo, env: Mapping[str, str]) -> dict[str, str]:
        """The variables of a worker that is about to be started.

        Args:
            worker: the worker.
            env: what it gets from plaunch.
        """
        found: dict[str, str] = {}
        round_ = env.get("PLAUNCH_ROUND", "0")
        for names, value in (
            (_SIZE, str(_ENTRIES)),
            (_DUMPS, "1"),
            (_FILES, self._prefix(env.get("TORCHELASTIC_RESTART_COUNT", "0"), round_)),
            ((VARIABLE,), self._socket(f"{round_}.{worker.local_rank}")),
        ):
            if value and not any(name in self._environ or name in env for name in names):
                found.update(dict.fromkeys(names if self._knows_old_names else names[:1], value))
        return found

    # --- the extension ----------------------------------------------------------------------------

    def start(self, control: Control) -> None:
        """Do nothing: the hook for the workers' environment does."""

    def handle(self, event: Event) -> None:
        """Take no event."""

    def stop(self, result: RunResult | None) -> None:
        """Remove the sockets, and the folders of rounds in which torch has dumped nothing."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
                os.rmdir(os.path.dirname(folder))
        if self._sockets:
            shutil.rmtree(self._sockets, ignore_errors=True)

    # ----------------------------------------------------------------------------------------------

    def _prefix(self, attempt: str, round_: str) -> str:
        """What the names of the files of a round begin with; empty if there is no folder."""
        with self._warning("dumps of the flight recorder are where torch puts them"):
            run_dir = find_run_dir(self._context.settings.get("logs_specs"), self._context.run_id)
            if run_dir:
                name = f"attempt_{attempt}-round_{round_}"
                folder = os.path.join(os.path.abspath(run_dir), FOLDER, name)
                os.makedirs(folder, exist_ok=True)
                self._folders.add(folder)
                return os.path.join(folder, PREFIX)
        return ""

    def _socket(self, name: str) -> str:
        """The path of a worker's socket, in a folder that only this user may open; or empty."""
        with self._warning("torch's server in workers is not asked"):
            self._sockets = self._sockets or tempfile.mkdtemp(prefix=SOCKETS)
            path = os.path.join(self._sockets, f"{name}.sock")
            if len(os.fsencode(path)) > _LONGEST_PATH:
                raise OSError(f"{path} is too long for a socket; set TMPDIR")
            return path
        return ""

    @contextlib.contextmanager
    def _warning(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except (OSError, PlaunchError) as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("--flight-recorder: %s: %s", consequence, error)


def find_torch_version() -> tuple[int, ...]:
    """The version of torch in the launcher's environment, which is not imported; () if unknown."""
    from importlib import metadata  # takes milliseconds

    try:
        words = metadata.version("torch").split(".")
        return tuple(int(word) for word in words[:2])
    except (metadata.PackageNotFoundError, ValueError):
        return ()
