"""Where the workers' streams go: the contract between a logs spec and a process context."""

from __future__ import annotations

import abc
import os
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.process.streams.std import Std
from plaunch.values import Record, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.process.streams.api import Sink, Streams

    _AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@plain_dataclass
class LogsDest(Record):
    """Files for each stream, by local rank; the fields are torchrun's.

    `stdouts` and `stderrs` name every local rank; an empty string leaves the stream where the
    launcher's own goes. A rank in `tee_stdouts` or `tee_stderrs` is also shown on the console, and
    its path there is normally the one in `stdouts` or `stderrs`. None is no path anywhere, as some
    specs for torchrun have it: an empty string, or no tee. `error_files` are where a worker
    reports its exception. The two `filtered_*` paths collect matching lines of all teed ranks.
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


def read_dest(dest: Any) -> LogsDest:
    """What a logs spec returns, which may be torch's, with all paths as text.

    Paths of third parties are of any kind, and None for the empty string or no tee; the filtered
    ones came to torch later than the rest.
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
        # Torch's own spec tees every stream to there when there are to be no files, and torchrun
        # then leaves the stream alone.
        for paths, tees in ((read.stdouts, read.tee_stdouts), (read.stderrs, read.tee_stderrs)):
            for rank in [rank for rank, path in tees.items() if path == os.devnull]:
                if not paths.get(rank):
                    del tees[rank]
    return read


def _text(path: _AnyPath | None) -> str:
    return os.fsdecode(path) if path else ""


class LogsSpecs(abc.ABC):
    """Decides, at each start of a worker group, where logs go. Plugins implement it.

    The four keyword arguments are torchrun's, and all that a logs spec is constructed with.

    Args:
        log_dir: base directory; None asks for no files, `os.devnull` forbids them.
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
        """Create the folders of one start and say where each stream goes.

        Called once before each start of the workers, with their environments by local rank. May add
        variables to them (`TORCHELASTIC_ERROR_FILE` is set here, as torchrun does). A plugin's runs
        on a thread that ends with the call, and has a minute.
        """

    @property
    @abc.abstractmethod
    def root_log_dir(self) -> str | None:
        """The directory below which all files go; None when there are no files."""

    @property
    def temporary_dir(self) -> str | None:
        """The folder that `close` will remove, if any; for processes that outlive a launcher.

        Removed only if its name begins with `plaunch_`, with `remove_temporary`.
        """
        return None

    def planned(self, run_id: str, local_rank: int) -> dict[str, str] | None:
        """Where the files of a rank's first start would be, for `--dry-run`; creates nothing.

        The keys are `stdout`, `stderr` and `error_file`; what goes to the console alone has none.
        None, the default, is for a spec that cannot tell.
        """
        del run_id, local_rank
        return None

    def create_run_dir(self, run_id: str) -> str | None:
        """The folder below `root_log_dir` that is this launch's alone, created if it is missing.

        Called before the first `reify`, if something other than workers writes there as well.
        torchrun has no such step. The default has no such folder, and returns None.
        """
        del run_id
        return None

    def open_sink(self, local_rank: int, stream: str) -> Sink | None:
        """Open what takes the output of a worker in the place of its file, if it is not a file.

        Called for both streams of each rank, `"stdout"` and `"stderr"`, at each start of the
        workers, after `reify`. What it raises ends the launch. torchrun has no such step, and with
        `--keep-daemons` it is not called either: workers write to the files of `reify` then. The
        default has no sinks.
        """
        del local_rank, stream
        return None

    def open_streams(self, dest: LogsDest, nprocs: int, **options: Any) -> Streams:
        """Open what carries the workers' output to where `dest` says.

        Called once for each start of the workers, just before it. torchrun has no such step. The
        default opens plaunch's own.

        Args:
            dest: what `reify` has returned, with all paths as text; the maps may lack ranks.
            nprocs: number of local ranks.
            options: `prefixes`, the texts before a teed line on the console, by local rank; if one
                has `${line}` in it, it is all of the line, in JSON, in which `${line}`, `${stream}`
                and `${utc}` become values (`--log-format=json`); `stdout_filters` and
                `stderr_filters`, substrings: teed lines that contain one are also added to the file
                that `dest` names for that; `capture_stderr`, whether the last lines of stderr are
                to be known; `keeps_daemons`, whether something may be left that writes when the
                launcher is gone; `before`, the streams of the start before this one, or None: the
                console shows first what they have not shown yet; `open_sink`, if this logs spec has
                sinks, in the place of the method. There may be more in later versions.

        Raises:
            OSError: something cannot be opened.
        """
        if has_sinks(self):
            options.setdefault("open_sink", self.open_sink)
        from plaunch.parts import STREAMS, load_part  # when workers start

        streams: Streams = load_part(STREAMS)(dest, nprocs, **options)
        return streams

    def close(self, succeeded: bool) -> None:
        """Drop what is not worth keeping after the job, and finish the rest; called once.

        The logs of a job that has failed may be finished as well, say compressed. Its failure
        bundle may be made after that, and has of them what it still finds in their files.
        It is called on a thread, which is waited for a minute, or ten seconds after a signal has
        ended the job. What it raises changes nothing of how the job has ended. torchrun
        has no such step. The default keeps everything.
        """
        del succeeded


def has_sinks(specs: Any) -> bool:
    """Whether a logs spec opens sinks."""
    its = getattr(specs, "open_sink", None)
    return its is not None and getattr(its, "__func__", None) is not LogsSpecs.open_sink


def open_streams(specs: LogsSpecs, dest: LogsDest, nprocs: int, **options: Any) -> Streams:
    """The streams that a logs spec opens; plaunch's own if it was written for torchrun."""
    open_its = getattr(specs, "open_streams", partial(LogsSpecs.open_streams, specs))
    streams: Streams = open_its(dest, nprocs, **options)
    return streams


def default_logs_specs(
    log_dir: str | os.PathLike[str] | None,
    redirects: Std | Mapping[int, Std],
    tee: Std | Mapping[int, Std],
) -> LogsSpecs:
    """The logs spec of a call that brings none, from a program that has chosen no plugin.

    Raises:
        LogDirectoryError: the log directory cannot be used.
        PluginLoadError: the plugin that has it is not installed.
    """
    from plaunch.parts import DIRECT_LOGS_SPECS, load_part  # direct use only

    specs: LogsSpecs = load_part(DIRECT_LOGS_SPECS)(log_dir, redirects, tee)
    return specs
