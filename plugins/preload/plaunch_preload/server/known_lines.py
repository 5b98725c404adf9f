"""Lines of other packages: which one is responsible for a call, and which do not prevent a fork.

The known lines were found by reading their source. An entry matches a line of source, not a
version. When a package changes the line, the entry no longer matches, and workers start afresh
until the entry is updated.
"""

from __future__ import annotations

import linecache
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Modules of the standard library that may be between the responsible line and the call.
_BETWEEN = frozenset(
    (
        "_collections_abc",
        "collections.abc",
        "ctypes",
        "importlib",
        "os",
        "random",
        "secrets",
        "tempfile",
        "uuid",
    )
)
_PACKAGE = __name__.rpartition(".")[0]


def find_caller() -> str:
    """Return the module and line of the caller, as in `torch.jit._state:29`."""
    frame = _find_frame()
    return "?" if frame is None else f"{_module_of(frame)}:{frame.f_lineno}"


def is_standard_library() -> bool:
    """Whether the caller is a module of the standard library."""
    frame: Any = sys._getframe(1)
    while frame is not None and _module_of(frame).rpartition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return frame is not None and _module_of(frame).partition(".")[0] in sys.stdlib_module_names


def _find_frame() -> Any:
    frame: Any = sys._getframe(1)
    while frame is not None and _is_between(_module_of(frame)):
        frame = frame.f_back
    return frame


def _module_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


def find_known(table: Mapping[str, Sequence[KnownLine]]) -> tuple[KnownLine, Any] | None:
    """Return the entry of a line that is running, and the frame of the line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        for known in table.get(_module_of(frame), ()):
            if known.text in _lines_of(frame):
                return known, frame
        frame = frame.f_back
    return None


def _lines_of(frame: Any) -> str:
    """Return the current line and its neighbours.

    Python versions report different lines of a statement of several lines.
    """
    code, line = frame.f_code, frame.f_lineno
    return "".join(
        linecache.getline(code.co_filename, number, frame.f_globals)
        for number in range(line - 1, line + 2)
    )


def _is_between(module: str) -> bool:
    return module in _BETWEEN or module.rpartition(".")[0] == _PACKAGE


class HarmlessLine(NamedTuple):
    """A line that draws random numbers or reads a process id, harmlessly or renewably.

    Args:
        module: the module that contains the line.
        text: a part of the line.
        renew: repeats the effect in a worker, given the module; None if sharing it is harmless.
        clean_up: removes in the fork server what workers create again, given the module.
    """

    module: str
    text: str
    renew: Callable[[Any], None] | None = None
    clean_up: Callable[[Any], None] | None = None


class FilteredRead(NamedTuple):
    """A line that reads all variables, and keeps those with a prefix.

    Args:
        module: the module that contains the line.
        text: a part of the line.
        prefix: the prefix of the kept names.
        parameter: the local variable with the prefix; the entry only matches if it is `prefix`.
    """

    module: str
    text: str
    prefix: str
    parameter: str = ""


KnownLine = TypeVar("KnownLine", HarmlessLine, FilteredRead)


def _by_module(lines: Sequence[KnownLine]) -> dict[str, list[KnownLine]]:
    found: dict[str, list[KnownLine]] = {}
    for line in lines:
        found.setdefault(line.module, []).append(line)
    return found


def _renew_authkey(module: Any) -> None:
    module.current_process().authkey = os.urandom(32)


def _renew_session(module: Any) -> None:
    module.SESSION_ID = module.uuid4().hex


def _renew_dummies(module: Any) -> None:
    module.Dummy._base_dummy_index = module.Dummy._prng.randint(10**6, 9 * 10**6)


def _renew_media_folder(module: Any) -> None:
    module.MEDIA_TMP.__init__("wandb-media")


def _remove_media_folder(module: Any) -> None:
    module.MEDIA_TMP.cleanup()


def _renew_artifacts_folder(module: Any) -> None:
    module.Artifact._TMP_DIR.__init__("wandb-artifacts")


def _remove_artifacts_folder(module: Any) -> None:
    module.Artifact._TMP_DIR.cleanup()


_HARMLESS = (
    # These compare the id with that of the process that uses the object.
    HarmlessLine("filelock._api", "creator_pid = os.getpid()"),
    HarmlessLine("filelock._api", "if os.getpid() == creator_pid:"),
    HarmlessLine("filelock._api", "if (pid := os.getpid()) == _FORK_STATE.pid:"),
    HarmlessLine("filelock._api", "self.pid = os.getpid()"),
    HarmlessLine("fsspec.spec", "cls._pid = os.getpid()"),
    # It checks whether files exist in a folder of /proc.
    HarmlessLine("psutil._pslinux", 'os.path.exists(f"/proc/{os.getpid()}/'),
    # `gettempdir` creates and removes a file with a random name, to find a folder.
    HarmlessLine("tempfile", "name = next(namer)"),
    HarmlessLine("multiprocessing.process", "AuthenticationString(os.urandom(32))", _renew_authkey),
    # dill's fork of multiprocessing
    HarmlessLine("multiprocess.process", "AuthenticationString(os.urandom(32))", _renew_authkey),
    # The name of a semaphore that is created and removed at once.
    HarmlessLine("joblib._multiprocessing_helpers", 'name = "/joblib-{}-{}".format('),
    # Keys of dictionaries that are never sent to other processes.
    HarmlessLine("opentelemetry.context", 'return keyname + "-" + str(uuid4())'),
    HarmlessLine("torch.distributed._composable.contract", "{str(uuid.uuid4())}"),
    # The first number of identifiers that are unique in their process.
    HarmlessLine("rich.style", "_id_generator = count(getrandbits(24))"),
    # An example in a docstring.
    HarmlessLine("scipy.stats._distribution_infrastructure", "{repr(X.sample(shape=(4,)))}"),
    HarmlessLine("sympy.core.symbol", "_base_dummy_index = _prng.randint(", _renew_dummies),
    HarmlessLine("transformers.utils.hub", "SESSION_ID = uuid4().hex", _renew_session),
    # A default that `wandb.setup` sets again.
    HarmlessLine("wandb.sdk.wandb_settings", "x_stats_pid: int = os.getpid()"),
    HarmlessLine(
        "wandb.sdk.artifacts.artifact",
        '_TMP_DIR = tempfile.TemporaryDirectory("wandb-artifacts")',
        _renew_artifacts_folder,
        _remove_artifacts_folder,
    ),
    HarmlessLine(
        "wandb.sdk.data_types._private",
        'MEDIA_TMP = tempfile.TemporaryDirectory("wandb-media")',
        _renew_media_folder,
        _remove_media_folder,
    ),
)
_READS = (
    FilteredRead("fsspec.config", "for key in envdict:", "FSSPEC_"),
    FilteredRead("fsspec.config", "envdict = dict(envdict)", "FSSPEC_"),
    FilteredRead("tqdm.utils", "if k.startswith(prefix)", "TQDM_", "prefix"),
)
FILTERED_READS = _by_module(_READS)

# Threads of native libraries that handle a fork themselves. jemalloc, which pyarrow uses, starts
# none in the child: the threads that allocate return memory to the system instead.
HARMLESS_THREADS = frozenset(("jemalloc_bg_thd",))


class HarmlessLines:
    """The harmless lines that have run in this process."""

    def __init__(self) -> None:
        self._lines = _by_module(_HARMLESS)
        # Lines of modules that were imported earlier have run already.
        self._seen = {line for line in _HARMLESS if line.module in sys.modules}

    def is_running(self) -> bool:
        """Whether one of them has called the caller."""
        found = find_known(self._lines)
        if found is not None:
            self._seen.add(found[0])
        return found is not None

    def clean_up(self) -> None:
        """Remove in the fork server what workers create again."""
        for line in self._seen:
            if line.clean_up is not None:
                line.clean_up(sys.modules[line.module])

    def renew(self) -> None:
        """Repeat in a worker the effects of the lines."""
        for line in self._seen:
            if line.renew is not None:
                line.renew(sys.modules[line.module])
