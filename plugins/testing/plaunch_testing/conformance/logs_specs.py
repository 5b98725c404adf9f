"""The conformance suite for logs specs."""

from __future__ import annotations

import itertools
import os
import pickle
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from plaunch.errors import UsageError
from plaunch.process import LogsDest, LogsSpecs, OutputCounts, Std

from plaunch_testing.conformance.plugin_suite import PluginSuite, inherited

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch.plugin import LogsSpecsFactory
    from plaunch.process import Streams

_Streams = dict[str, Any]
_SETTINGS: dict[str, _Streams] = {
    "nothing": {},
    "redirects": {"redirects": Std.ALL},
    "tee": {"tee": Std.ALL},
    "one of each": {"redirects": Std.OUT, "tee": Std.ERR},
    "by rank": {"redirects": {0: Std.ALL}, "tee": {1: Std.OUT, 3: Std.ALL}},
    "a filter": {"tee": Std.ALL, "local_ranks_filter": {1}},
    "a filter without local ranks": {"tee": Std.ALL, "local_ranks_filter": {77}},
}
_PIECES = (b"a line\n", b"half of", b" a line\n\x00\xff", b"x" * (64 << 10))
_EVERY = pytest.mark.parametrize("setting", _SETTINGS)


class LogsSpecsConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `local_world_sizes` are the tested numbers of workers.
    """

    local_world_sizes: ClassVar[Sequence[int]] = (1, 4, 12)

    def plugin(self) -> LogsSpecsFactory:
        """Return the object that the logs spec's name refers to; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _temporary(self, _surroundings: None, monkeypatch: pytest.MonkeyPatch) -> None:
        # Without --log-dir, a logs spec may create a temporary folder.
        temporary = os.path.join(self.folder, "tmp")
        os.mkdir(temporary)
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr("tempfile.tempdir", None)
        self.log_dir = os.path.join(self.folder, "logs")

    def create(self, **keywords: Any) -> LogsSpecs:
        """Create it with torchrun's four keyword arguments."""
        given: dict[str, Any] = {
            "log_dir": None,
            "redirects": Std.NONE,
            "tee": Std.NONE,
            "local_ranks_filter": None,
        }
        specs: LogsSpecs = self.call("creating it", self.thing, **{**given, **keywords})
        return specs

    def use_once(self) -> object:
        """Start two workers."""
        specs = self.create(log_dir=self.log_dir, tee=Std.ALL)
        return specs, self.reify(specs, environments(2))

    def reify(self, specs: LogsSpecs, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Start workers once."""
        return self.call("reify()", specs.reify, envs)

    def files_of(self, dest: LogsDest) -> list[str]:
        """Return all files of one start of the workers."""
        found = paths_of(dest)
        if self.is_for_torch:
            # torch returns paths below /dev/null for files that it never writes.
            found = [path for path in found if os.path.dirname(path) != os.devnull]
        return found

    def starts(self, setting: str) -> Iterator[tuple[LogsDest, dict[int, dict[str, str]]]]:
        """Start every number of workers, with and without a folder."""
        for size, log_dir in itertools.product(
            self.local_world_sizes, (self.log_dir, None, os.devnull)
        ):
            envs = environments(size)
            yield self.reify(self.create(log_dir=log_dir, **_SETTINGS[setting]), envs), envs

    def test_it_is_a_class_of_logs_specs(self) -> None:
        """It is a subclass of `LogsSpecs`."""
        thing = self.thing
        assert isinstance(thing, type), f"{thing!r} is not a class"
        assert issubclass(thing, LogsSpecs), f"{thing!r} is not derived from LogsSpecs"

    def test_it_is_created_without_arguments(self) -> None:
        """`launch_agent` creates it without arguments."""
        self.call("creating it", self.thing)

    @_EVERY
    def test_it_gives_a_place_to_both_streams_of_every_rank(self, setting: str) -> None:
        """Otherwise the workers cannot be started."""
        for dest, envs in self.starts(setting):
            assert set(dest.stdouts) == set(envs), f"stdouts has ranks {sorted(dest.stdouts)}"
            assert set(dest.stderrs) == set(envs), f"stderrs has ranks {sorted(dest.stderrs)}"

    @_EVERY
    def test_it_names_no_rank_that_is_not_there(self, setting: str) -> None:
        """Neither for teed streams nor for error files."""
        for dest, envs in self.starts(setting):
            for name in ("tee_stdouts", "tee_stderrs", "error_files"):
                more = set(getattr(dest, name)) - set(envs)
                assert not more, f"{name} has ranks {sorted(more)} of {len(envs)} workers"

    @_EVERY
    def test_every_folder_exists(self, setting: str) -> None:
        """Folders of files exist when `reify` returns, because the files are opened next."""
        for dest, _ in self.starts(setting):
            for path in self.files_of(dest):
                assert os.path.isdir(os.path.dirname(path)), f"the folder of {path!r} is missing"
                assert not os.path.isdir(path), f"{path!r} is a folder"

    @_EVERY
    def test_no_two_ranks_share_a_file(self, setting: str) -> None:
        """A rank's streams do not share a file with its error file either."""
        for dest, _ in self.starts(setting):
            owners: dict[str, object] = {}
            places = [*rank_places(dest.stdouts), *rank_places(dest.stderrs)]
            for path, owner in places:
                assert owners.setdefault(path, owner) == owner, f"{path!r} belongs to two ranks"
            for path, rank in rank_places(dest.error_files):
                assert owners.setdefault(path, ("errors", rank)) == ("errors", rank), (
                    f"{path!r} is an error file and something else"
                )

    def test_workers_get_the_path_of_their_error_file(self) -> None:
        """In `TORCHELASTIC_ERROR_FILE`; the launcher reads the same path."""
        for dest, envs in self.starts("tee"):
            for rank, env in envs.items():
                path = dest.error_files.get(rank, "")
                given = env.get("TORCHELASTIC_ERROR_FILE", "")
                if path not in ("", os.devnull) or given:
                    assert given == path, f"rank {rank} gets {given!r}, but {path!r} is read"

    def test_only_ranks_in_the_filter_are_shown(self) -> None:
        """Other ranks are not teed."""
        for setting in ("a filter", "a filter without local ranks"):
            wanted = _SETTINGS[setting]["local_ranks_filter"]
            for dest, _ in self.starts(setting):
                shown = {*dest.tee_stdouts, *dest.tee_stderrs} - wanted
                assert not shown, f"ranks {sorted(shown)} are teed, and the filter has {wanted}"

    def test_environments_keep_what_they_have(self) -> None:
        """It may add variables, but not remove or change any."""
        for _, envs in self.starts("tee"):
            before = environments(len(envs))
            assert set(envs) == set(before)
            for rank, env in before.items():
                assert {name: envs[rank].get(name) for name in env} == env, f"for rank {rank}"
            for env in envs.values():
                assert all(isinstance(value, str) for value in env.values()), f"in {env!r}"

    @_EVERY
    def test_devnull_forbids_files(self, setting: str) -> None:
        """`--log-dir=/dev/null` creates no files."""
        dest = self.reify(self.create(log_dir=os.devnull, **_SETTINGS[setting]), environments(4))
        assert not self.files_of(dest), f"it has files: {self.files_of(dest)}"

    def test_all_files_are_below_its_folder(self) -> None:
        """Users and tools look for files in `root_log_dir`."""
        specs = self.create(log_dir=self.log_dir, tee=Std.ALL)
        dest = self.reify(specs, environments(4))
        root = specs.root_log_dir
        assert root is None or isinstance(root, str), f"root_log_dir is {root!r}"
        for path in self.files_of(dest):
            assert root is not None, f"root_log_dir is None, and {path!r} is a file"
            assert os.path.abspath(path).startswith(os.path.abspath(root) + os.sep), (
                f"{path!r} is not below {root!r}"
            )

    def test_the_run_may_have_a_folder(self) -> None:
        """`create_run_dir` may create a folder below `root_log_dir`, before workers start."""
        for log_dir in (self.log_dir, None, os.devnull):
            specs = self.create(log_dir=log_dir)
            folder = self.call("create_run_dir()", specs.create_run_dir, "conformance")
            if folder is not None:
                assert os.path.isdir(folder), f"{folder!r} is not a folder"
                assert specs.root_log_dir is not None, "root_log_dir is None"
                assert os.path.abspath(folder).startswith(os.path.abspath(specs.root_log_dir))
            self.reify(specs, environments(2))

    def test_the_next_attempt_has_other_files(self) -> None:
        """Files of the previous attempt are kept: they show why it failed."""
        specs = self.create(log_dir=self.log_dir, redirects=Std.ALL)
        dests = [self.reify(specs, environments(2, attempt=attempt)) for attempt in range(3)]
        for one, other in itertools.combinations(dests, 2):
            shared = set(self.files_of(one)) & set(self.files_of(other))
            assert not shared, f"two attempts have {sorted(shared)}"

    def test_two_nodes_share_a_folder(self) -> None:
        """On a shared file system, both have the same `--log-dir`."""
        dests = [
            self.reify(
                self.create(log_dir=self.log_dir, redirects=Std.ALL), environments(2, node=node)
            )
            for node in range(2)
        ]
        shared = set(self.files_of(dests[0])) & set(self.files_of(dests[1]))
        assert not shared, f"two nodes have {sorted(shared)}"

    def test_destinations_are_plain_data(self) -> None:
        """Strings by integer ranks, as in torchrun's `LogsDest`."""
        for dest, _ in self.starts("tee"):
            pickle.loads(pickle.dumps(dest))  # noqa: S301 - just written
            for name, value in vars(dest).items():
                places = value if isinstance(value, dict) else {0: value}
                for rank, path in places.items():
                    assert type(rank) is int, f"{name} has the key {rank!r}"
                    assert isinstance(path, str), f"{name} has {path!r}"

    @pytest.mark.parametrize("is_started", [True, False])
    def test_its_streams_can_be_used(self, is_started: bool) -> None:
        """All methods of its streams work, even if the workers do not start."""
        specs = self.create(log_dir=self.log_dir, tee=Std.ALL)
        dest = self.reify(specs, environments(2))
        streams = self.call("open_streams()", open_streams, specs, dest)
        for rank in range(2):
            for fd in self.call("child_fds()", streams.child_fds, rank):
                if fd is not None:
                    assert not os.get_inheritable(fd), f"descriptor {fd} is not close-on-exec"
                    os.write(fd, b"a line\n")
        if is_started:
            self.call("start()", streams.start)
            self.call("is_reading()", streams.is_reading)
            counts = self.call("counts()", streams.counts)
            assert isinstance(counts, OutputCounts), f"counts() returned {counts!r}"
            shown = self.call("last_shown()", streams.last_shown)
            assert isinstance(shown, float), f"last_shown() returned {shown!r}"
        self.call("escalate()", streams.escalate)
        self.call("finish()", streams.finish)
        self.call("the second finish()", streams.finish)
        for rank in range(2):
            lines = list(self.call("last_lines()", streams.last_lines, rank))
            assert all(isinstance(line, str) for line in lines), f"last_lines() has {lines!r}"
            if hasattr(streams, "is_shown"):
                self.call("is_shown()", streams.is_shown, rank)

    @pytest.mark.parametrize("where", ["a file", "below a file"])
    def test_an_unusable_folder_is_a_usage_error(self, where: str) -> None:
        """It raises when it is created, or at the first start."""
        path = os.path.join(self.folder, "file")
        with open(path, "w"):
            pass
        if where == "below a file":
            path = os.path.join(path, "logs")
        with pytest.raises(UsageError) as caught:
            self.reify(self.create(log_dir=path, redirects=Std.ALL), environments(1))
        assert str(caught.value), "its UsageError has no message"

    @pytest.mark.parametrize("succeeded", [True, False])
    @pytest.mark.parametrize("log_dir", ["a folder", "no folder", "/dev/null", "no start"])
    def test_it_can_be_closed(self, log_dir: str, succeeded: bool) -> None:
        """After any end of the job, even before it began."""
        folders = {"a folder": self.log_dir, "no folder": None, "/dev/null": os.devnull}
        specs = self.create(log_dir=folders.get(log_dir, self.log_dir))
        if log_dir != "no start":
            self.reify(specs, environments(2))
        self.call("close()", specs.close, succeeded)

    def test_it_can_be_closed_twice(self) -> None:
        """The second time does nothing."""
        specs = self.create()
        self.reify(specs, environments(2))
        specs.close(True)
        self.call("the second close()", specs.close, True)

    def test_logs_of_a_failed_job_are_kept(self) -> None:
        """In the user's folder; `close` may finish them, for example compress them.

        Each log is then in its file, or in one beside it with the same prefix.
        """
        specs = self.create(log_dir=self.log_dir, redirects=Std.ALL)
        written = self.files_of(self.reify(specs, environments(2)))
        for path in written:
            with open(path, "a") as file:
                file.write("what has happened\n")
        self.call("close()", specs.close, False)
        gone = [path for path in written if not is_kept(path)]
        assert not gone, f"it has removed {gone}"

    @pytest.mark.parametrize("setting", ["redirects", "tee"])
    def test_its_sinks_take_what_workers_write(self, setting: str) -> None:
        """Its sinks accept any bytes, or none, at each start of the workers."""
        specs = self.create(log_dir=self.log_dir, **_SETTINGS[setting])
        for attempt in range(2):
            self.reify(specs, environments(2, attempt=attempt))
            sinks = [
                self.call("open_sink()", specs.open_sink, rank, stream)
                for rank in range(2)
                for stream in ("stdout", "stderr")
            ]
            found = inherited(self.files_before)
            assert not found, f"workers inherit {found}"
            for sink in sinks[:-1]:  # the last one gets nothing
                if sink is not None:
                    for piece in _PIECES:
                        self.call("write()", sink.write, piece)
            for sink in filter(None, sinks):
                self.call("close()", sink.close)
        self.call("close()", specs.close, True)

    def test_two_do_not_mix(self) -> None:
        """Several launches may run in one process."""
        one = self.create(log_dir=self.log_dir, redirects=Std.ALL)
        other = self.create(log_dir=self.log_dir + "-2", tee=Std.OUT)
        first = self.reify(one, environments(2))
        second = self.reify(other, environments(3))
        shared = set(self.files_of(first)) & set(self.files_of(second))
        assert not shared, f"both have {sorted(shared)}"


def open_streams(specs: LogsSpecs, dest: LogsDest) -> Streams:
    """Open the streams of two workers."""
    return specs.open_streams(
        dest,
        2,
        prefixes={0: "[0]:", 1: "[1]:"},
        stdout_filters=(),
        stderr_filters=(),
        capture_stderr=True,
        keeps_daemons=False,
    )


def is_kept(path: str) -> bool:
    """Whether a file, or one with its name as a prefix, is in the folder."""
    folder, name = os.path.split(path)
    return os.path.isdir(folder) and any(one.startswith(name) for one in os.listdir(folder))


def environments(size: int, *, attempt: int = 0, node: int = 0) -> dict[int, dict[str, str]]:
    """Return the environments of a node's workers, by local rank."""
    return {
        rank: {
            "RANK": str(node * size + rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": str(node),
            "ROLE_RANK": str(node * size + rank),
            "ROLE_NAME": "default",
            "WORLD_SIZE": str(2 * size),
            "LOCAL_WORLD_SIZE": str(size),
            "GROUP_WORLD_SIZE": "2",
            "ROLE_WORLD_SIZE": str(2 * size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": "conformance",
            "PLAUNCH_ROUND": str(attempt),
        }
        for rank in range(size)
    }


def rank_places(paths: Mapping[int, str]) -> list[tuple[str, int]]:
    """Return the destinations that are files, with their ranks."""
    return [(path, rank) for rank, path in paths.items() if path not in ("", os.devnull)]


def paths_of(dest: LogsDest) -> list[str]:
    """Return all files of one start of the workers."""
    maps = (dest.stdouts, dest.stderrs, dest.tee_stdouts, dest.tee_stderrs, dest.error_files)
    found = [path for paths in maps for path, _ in rank_places(paths)]
    found += [path for path in (dest.filtered_stdout, dest.filtered_stderr) if path]
    return sorted({path for path in found if path != os.devnull})
