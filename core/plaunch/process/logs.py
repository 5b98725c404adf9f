"""The contract of logs specs, which decide where the streams of workers go."""

from __future__ import annotations

import abc
import enum
import os
from dataclasses import field
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError
from plaunch.numbers import MOST_WORKERS, digits, quote
from plaunch.values import Record, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plaunch.doctor import DoctorContext, Finding
    from plaunch.process.streams import Sink, Streams

    _AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_VALUES = ("0", "1", "2", "3")


class Std(enum.IntFlag):
    """Output streams of a worker; names and values are torchrun's."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Parse `"3"` (all workers) or `"0:3,10-12:1"` (by local rank).

        torchrun accepts single local ranks of one digit; here a rank has any number of digits, and
        may be a range that includes both ends.

        Raises:
            UsageError: `vm` has another form, a value above 3, or names a local rank twice.
        """
        if vm in _VALUES:
            return cls(int(vm))
        streams: dict[int, Std] = {}
        for item in vm.split(","):
            ranks, _, value = item.partition(":")
            low, dash, high = ranks.partition("-")
            first = digits(low, MOST_WORKERS)
            last = digits(high, MOST_WORKERS) if dash else first
            if value not in _VALUES or first is None or last is None or last < first:
                raise UsageError(
                    f"{quote(vm)} does not name streams: write 0 (none), 1 (stdout), 2 (stderr) "
                    "or 3 (both), or a value per local rank as in '0:3,1:0' or '0-7:1'"
                )
            for rank in range(first, last + 1):
                if rank in streams:
                    raise UsageError(f"{vm!r} names local rank {rank} more than once")
                streams[rank] = cls(int(value))
        return streams


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Expand a setting to all local ranks; ranks that are missing in a map get `NONE`."""
    ranks = range(local_world_size)
    if isinstance(val_or_map, int):  # torch's Std is one as well
        return dict.fromkeys(ranks, Std(int(val_or_map)))
    return {rank: Std(int(val_or_map.get(rank, 0))) for rank in ranks}


@plain_dataclass
class LogsDest(Record):
    """Files for each stream, by local rank; the fields are torchrun's.

    `stdouts` and `stderrs` name every local rank; an empty string means the launcher's own stream.
    A rank in `tee_stdouts` or `tee_stderrs` is also shown on the console, and has the same path
    there as in `stdouts` or `stderrs`. None, which some specs for torchrun have, means an empty
    string, or no tee. Workers report their exceptions in `error_files`. The two `filtered_*` paths
    collect matching lines of all teed ranks.
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


def read_dest(dest: Any) -> LogsDest:
    """Convert the result of a logs spec, which may be torch's `LogsDest`, to text paths.

    Third parties return paths of any type, and None. Older versions of torch have no filtered
    paths.
    """
    read = LogsDest(
        stdouts={rank: _text(path) for rank, path in dest.stdouts.items()},
        stderrs={rank: _text(path) for rank, path in dest.stderrs.items()},
        tee_stdouts={rank: _text(p) for rank, p in dest.tee_stdouts.items() if p is not None},
        tee_stderrs={rank: _text(p) for rank, p in dest.tee_stderrs.items() if p is not None},
        error_files={rank: _text(path) for rank, path in dest.error_files.items()},
        filtered_stdout=_text(getattr(dest, "filtered_stdout", "")),
        filtered_stderr=_text(getattr(dest, "filtered_stderr", "")),
    )
    if not isinstance(dest, LogsDest):
        # For a log directory of /dev/null, torch's own spec tees every stream to that, and torchrun
        # does not redirect the stream.
        for paths, tees in ((read.stdouts, read.tee_stdouts), (read.stderrs, read.tee_stderrs)):
            for rank in [rank for rank, path in tees.items() if path == os.devnull]:
                if not paths.get(rank):
                    del tees[rank]
    return read


def _text(path: _AnyPath | None) -> str:
    return os.fsdecode(path) if path else ""


class LogsSpecs(abc.ABC):
    """Decides, at each start of a worker group, where logs go. Plugins implement it.

    The four keyword arguments are torchrun's. There are no others.

    Args:
        log_dir: base directory; None means no files unless needed, `os.devnull` no files at all.
        redirects: streams that go to a file instead of the console, for all or by local rank.
        tee: streams that go to a file and to the console.
        local_ranks_filter: the local ranks that are shown on the console; None means all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | Mapping[int, Std] = Std.NONE,
        tee: Std | Mapping[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abc.abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the folders of one start, and return where each stream goes.

        Called once before each start of the workers, with their environments by local rank. May add
        variables to these; `TORCHELASTIC_ERROR_FILE` is set here, as in torchrun. The method of a
        plugin runs on a thread that ends with the call, and has a minute.
        """

    @property
    @abc.abstractmethod
    def root_log_dir(self) -> str | None:
        """The directory of all files; None if there are no files."""

    @property
    def temporary_dir(self) -> str | None:
        """The folder that `close` removes, if any; the guard does if the launcher is killed.

        It is removed by `remove_temporary`, only if its name begins with `plaunch_`.
        """
        return None

    def planned(self, run_id: str, local_rank: int) -> dict[str, str] | None:
        """Return the files of a rank's first start, for `--dry-run`; creates nothing.

        The keys are `stdout`, `stderr` and `error_file`; streams that only go to the console have
        none. The default returns None, for unknown.
        """
        del run_id, local_rank
        return None

    def create_run_dir(self, run_id: str) -> str | None:
        """Create the folder below `root_log_dir` for this launch, and return it.

        Called before the first `reify` if files of the launcher go there as well. torchrun has no
        such step. The default returns None, for no such folder.
        """
        del run_id
        return None

    def open_sink(self, local_rank: int, stream: str) -> Sink | None:
        """Open a sink that receives a stream of a worker instead of a file; None for the file.

        Called for both streams of each rank, `"stdout"` and `"stderr"`, at each start of the
        workers, after `reify`. An exception ends the launch. Not called by torchrun, nor with
        `--keep-daemons`: workers then write to the files of `reify`. The default returns None.
        """
        del local_rank, stream
        return None

    def open_streams(self, dest: LogsDest, nprocs: int, **options: Any) -> Streams:
        """Open the streams that carry the workers' output to `dest`.

        Called once for each start of the workers, just before it. torchrun has no such step. The
        default opens plaunch's own streams.

        Args:
            dest: the result of `reify`, with all paths as text; the maps may lack ranks.
            nprocs: the number of local ranks.
            options: `prefixes`, the text before each teed line on the console, by local rank. A
                prefix with `${line}` is a template in JSON for the whole line, in which `${line}`,
                `${stream}` and `${utc}` are replaced (`--log-format=json`). `stdout_filters` and
                `stderr_filters`, substrings: teed lines that contain one are also written to the
                filtered file of `dest`. `capture_stderr`, whether to keep the last lines of stderr.
                `keeps_daemons`, whether daemons may write after the end of the launcher. `before`,
                the streams of the previous start, or None: the console first shows the rest of
                these. `open_sink`, called instead of the method. Later versions may add options.

        Raises:
            OSError: something cannot be opened.
        """
        options.setdefault("open_sink", self.open_sink)
        from plaunch.parts import STREAMS, load_part  # when workers start

        streams: Streams = load_part(STREAMS)(dest, nprocs, **options)
        return streams

    def doctor_findings(self, context: DoctorContext) -> Iterable[Finding]:
        """Check the folders of the logs for `--doctor`; the default finds nothing."""
        del context
        return ()

    def close(self, succeeded: bool) -> None:
        """Remove logs that need not be kept after the job, and finish the others; called once.

        The logs of a failed job may be finished as well, for instance compressed. A failure bundle
        may be made later, from the files that are then left. The launcher calls this on a thread,
        and waits for a minute, or ten seconds after a signal has ended the job. An exception does
        not change the outcome of the job. torchrun has no such step. The default keeps everything.
        """
        del succeeded


def own_logs_specs(specs: Any) -> LogsSpecs:
    """Return a logs spec, or the adapter of one that was written for torchrun."""
    if not isinstance(specs, LogsSpecs):
        from plaunch.parts import TORCHS_LOGS_SPECS, load_part  # for torchrun's only

        specs = load_part(TORCHS_LOGS_SPECS)(specs)
    own: LogsSpecs = specs
    return own


def default_logs_specs(
    log_dir: str | os.PathLike[str] | None,
    redirects: Std | Mapping[int, Std],
    tee: Std | Mapping[int, Std],
) -> LogsSpecs:
    """Create the logs spec for programs that call `start_processes` or an agent without one.

    Raises:
        LogDirectoryError: the log directory cannot be used.
        PluginLoadError: the plugin with the logs spec is not installed.
    """
    from plaunch.parts import DIRECT_LOGS_SPECS, load_part  # not in launches

    specs: LogsSpecs = load_part(DIRECT_LOGS_SPECS)(log_dir, redirects, tee)
    return specs


PREFIX = "plaunch_"


def find_run_dir(specs: object, run_id: str) -> str:
    """Create the folder of a launch that remains after it; empty if there is none.

    Args:
        specs: the logs spec of the launch; anything else has no folder.
        run_id: the id of the job.

    Raises:
        LogDirectoryError: the folder cannot be created; a third party's logs spec may raise others.
    """
    if not isinstance(specs, LogsSpecs):
        return ""
    path = specs.create_run_dir(run_id) or specs.root_log_dir
    return str(path) if path and path not in (os.devnull, specs.temporary_dir) else ""


def remove_temporary(folder: str) -> None:
    """Remove a temporary folder and its content. Symbolic links are removed, never followed.

    Does nothing if the name of the folder does not begin with `plaunch_`.

    Raises:
        OSError: something in it cannot be removed.
    """
    if not os.path.basename(folder).startswith(PREFIX) or os.path.islink(folder):
        return
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(parent, name))
        for name in folders:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                os.unlink(path)
            else:
                os.rmdir(path)
    os.rmdir(folder)
