"""The extension behind `--flight-recorder`: the variables of torch's flight recorder."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from plaunch.agent import Extension
from plaunch.errors import PlaunchError
from plaunch.process import find_run_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plaunch.agent import RunResult, WorkerInfo
    from plaunch.plugin import PluginContext

logger = logging.getLogger("plaunch")

FOLDER = "flight_recorder"  # in the folder of a run; it has a folder for each round
PREFIX = "rank_"  # of the files; torch appends the rank
_ENTRIES = 2000  # operations to keep: the default of torch 2.13; older versions keep none

# The names of each setting in newer and older versions of torch. Newer versions accept the older
# names too, but with a warning for each.
_OLDER = (2, 9)
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMPS = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


class FlightRecorder(Extension):
    """Sets variables for the workers of one launch, except those that the user has set.

    Args:
        context: the launch.
        environ: the environment that workers inherit.
        torch_version: the version of torch; by default that of the installed one.
    """

    takes_events = False

    def __init__(
        self,
        context: PluginContext,
        environ: Mapping[str, str] = os.environ,
        torch_version: tuple[int, ...] | None = None,
    ) -> None:
        self._context = context
        self._environ = environ
        self._folders: set[str] = set()  # the folders of dumps
        self._has_warned = False
        version = find_torch_version() if torch_version is None else torch_version
        self._knows_old_names = version < _OLDER

    def environment(self, worker: WorkerInfo, env: Mapping[str, str]) -> dict[str, str]:
        """The variables for a worker that is about to be started.

        Args:
            worker: the worker.
            env: the variables that plaunch sets.
        """
        found: dict[str, str] = {}
        round_ = env.get("PLAUNCH_ROUND", "0")
        for names, value in (
            (_SIZE, str(_ENTRIES)),
            (_DUMPS, "1"),
            (_FILES, self._prefix(env.get("TORCHELASTIC_RESTART_COUNT", "0"), round_)),
        ):
            if value and not any(name in self._environ or name in env for name in names):
                found.update(dict.fromkeys(names if self._knows_old_names else names[:1], value))
        return found

    # --- the extension ----------------------------------------------------------------------------

    def stop(self, result: RunResult | None) -> None:
        """Remove folders without dumps."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
                os.rmdir(os.path.dirname(folder))

    # ----------------------------------------------------------------------------------------------

    def _prefix(self, attempt: str, round_: str) -> str:
        """The prefix of the paths of a round's dumps; empty if there is no folder."""
        with self._warning("dumps of the flight recorder go to torch's default folder"):
            run_dir = find_run_dir(self._context.settings.get("logs_specs"), self._context.run_id)
            if run_dir:
                name = f"attempt_{attempt}-round_{round_}"
                folder = os.path.join(os.path.abspath(run_dir), FOLDER, name)
                os.makedirs(folder, exist_ok=True)
                self._folders.add(folder)
                return os.path.join(folder, PREFIX)
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
    """The version of the installed torch, without importing it; () if unknown."""
    from importlib import metadata  # takes milliseconds

    try:
        words = metadata.version("torch").split(".")
        return tuple(int(word) for word in words[:2])
    except (metadata.PackageNotFoundError, ValueError):
        return ()
