"""`start_processes`: both generations of its arguments, and what it refuses."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from pathlib import Path

import pytest
from plaunch.errors import (
    LogDirectoryError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
    RankMappingError,
    UsageError,
)
from plaunch.process import (
    ContextComponents,
    LogsDest,
    LogsSpecs,
    Std,
    SubprocessContext,
    start_processes,
)
from plaunch.process.start import start_program
from plaunch_multiprocessing import MultiprocessContext

from helpers.logs_specs import NoFiles
from helpers.programs import run_python
from helpers.waiting import BOUND


class InFolder(LogsSpecs):
    """A third party's logs spec: flat files, an own variable, not closed by anybody."""

    def __init__(self, folder):
        super().__init__(str(folder))
        self.closed = []

    def reify(self, envs):
        for env in envs.values():
            env["FROM_SPEC"] = 5  # a value that has yet to become a string
        return LogsDest(
            stdouts={rank: Path(self._root_log_dir) / f"{rank}.out" for rank in envs},
            stderrs=dict.fromkeys(envs, ""),
        )

    @property
    def root_log_dir(self):
        return self._root_log_dir

    def close(self, succeeded):
        self.closed.append(succeeded)


def echo(*args, **options):
    context = start_processes("echo", "echo", *args, **options)
    result = context.wait(BOUND)
    assert not result.is_failed()
    return result


@pytest.mark.parametrize("size", [0, 10, 300_000])
def test_each_program_reads_its_own_stdin(tmp_path, size):
    data = os.urandom(size)
    context = start_processes(
        "copy", "sh", {rank: ("-c", f"cat > {tmp_path}/{rank}") for rank in range(3)},
        components=ContextComponents(stdin=data),
    )  # fmt: skip
    assert not context.wait(BOUND).is_failed()
    assert [(tmp_path / str(rank)).read_bytes() for rank in range(3)] == [data] * 3


def read(path):
    with open(path) as file:
        return file.read()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary folders are made, and nothing else."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def test_the_newer_generation_has_a_logs_spec(tmp_path):
    result = echo({0: ("a", 1), 1: ("b",)}, {0: {}, 1: {}}, InFolder(tmp_path))
    assert [read(result.stdouts[rank]) for rank in (0, 1)] == ["a 1\n", "b\n"]
    assert result.stdouts[0] == str(tmp_path / "0.out")


@pytest.mark.parametrize("by_position", [True, False])
def test_the_older_generation_has_a_log_dir(tmp_path, by_position):
    given = {0: "a"}, {0: {}}
    if by_position:
        result = echo(*given, str(tmp_path), redirects=Std.OUT)
    else:
        result = echo(*given, log_dir=tmp_path, redirects=Std.OUT)
    assert read(result.stdouts[0]) == "a\n"
    assert result.stdouts[0].startswith(str(tmp_path))


def test_tee_shows_lines_with_the_prefix(tmp_path, capfd):
    echo({0: "a", 1: "b"}, log_dir=tmp_path, tee=Std.OUT, log_line_prefixes={1: "rank one> "})
    assert sorted(capfd.readouterr().out.splitlines()) == ["[echo0]:a", "rank one> b"]


def test_matching_lines_are_collected(tmp_path):
    context = start_processes(
        "t",
        "sh",
        {0: ("-c", "echo keep this; echo not that; echo keep me >&2")},
        log_dir=tmp_path,
        tee=Std.ALL,
        duplicate_stdout_filters=["keep"],
        duplicate_stderr_filters=["me"],
    )
    result = context.wait(BOUND)
    attempt = os.path.dirname(os.path.dirname(result.stdouts[0]))
    assert read(os.path.join(attempt, "filtered_stdout.log")) == "[t0]:keep this\n"
    assert read(os.path.join(attempt, "filtered_stderr.log")) == "[t0]:keep me\n"


def test_variables_reach_the_program(tmp_path):
    context = start_processes(
        "t", "sh", {0: ("-c", "echo $NUMBER $FROM_SPEC")}, {0: {"NUMBER": 7}}, InFolder(tmp_path)
    )
    assert read(context.wait(BOUND).stdouts[0]) == "7 5\n"


def test_the_callers_mappings_are_not_changed(tmp_path):
    args, envs = {0: "a"}, {0: {"NUMBER": 7}}
    echo(args, envs, InFolder(tmp_path))
    assert (args, envs) == ({0: "a"}, {0: {"NUMBER": 7}})


def test_a_given_logs_spec_is_left_open_and_an_own_one_is_closed(tmp_path, temporary):
    spec = InFolder(tmp_path)
    echo({0: "a"}, None, spec)
    assert spec.closed == []
    echo({0: "a"})
    context = start_processes("t", "false", {0: ()})
    assert context.wait(BOUND).failures[0].exitcode == 1
    context = start_processes("t", "sleep", {0: "600"})
    context.close(signal.SIGKILL)
    assert os.listdir(temporary) == []


def test_a_program_may_be_a_path(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 4\n")
    program.chmod(0o755)
    assert start_processes("t", program, {0: ()}).wait(BOUND).failures[0].exitcode == 4


@pytest.mark.parametrize(
    ("args", "envs", "message"),
    [
        ({0: "a", 2: "b"}, None, "args must name .* it lacks 1 and has 2"),
        ({0: "a", 1: "b"}, {0: {}}, "envs must name .* it lacks 1"),
        ({}, {}, "args names no local rank"),
    ],
)
def test_wrong_ranks_are_refused_before_anything_is_created(tmp_path, args, envs, message):
    with pytest.raises(RankMappingError, match=message):
        start_processes("t", "echo", args, envs, log_dir=tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("which", ["stdouts", "stderrs"])
def test_a_logs_spec_must_name_every_rank(which):
    with pytest.raises(RankMappingError, match=f"{which} must name .* it lacks 1"):
        start_processes("t", "echo", {0: "a", 1: "b"}, logs_specs=NoFiles(**{which: {0: ""}}))
    with pytest.raises(RankMappingError, match=f"{which} is .* must map each local rank"):
        start_processes("t", "echo", {0: "a"}, logs_specs=NoFiles(**{which: ["x"]}))


@pytest.fixture
def nones():
    """A logs spec that says None of whatever has no path, as torch's `Popen` takes it."""
    maps = ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files")
    nothing = {name: {0: None} for name in maps}
    return NoFiles(**nothing, filtered_stdout=None, filtered_stderr=None)


@pytest.mark.parametrize("entrypoint", ["sh", print])
def test_paths_of_none_are_no_paths(entrypoint, nones, capfd):
    args = {0: ("-c", "echo said")} if entrypoint == "sh" else {0: ("said",)}
    context = start_processes(
        "t",
        entrypoint,
        args,
        logs_specs=nones,
        duplicate_stdout_filters=["said"],
        duplicate_stderr_filters=["said"],
    )
    result = context.wait(BOUND)
    assert not result.is_failed()
    assert (result.stdouts, result.stderrs) == ({0: ""}, {0: ""})
    assert capfd.readouterr().out == "said\n"


@pytest.mark.parametrize("entrypoint", ["false", len])
def test_a_failure_without_an_error_file(entrypoint, nones):
    args = {0: ()} if entrypoint == "false" else {0: (1, 2)}
    result = start_processes("t", entrypoint, args, logs_specs=nones).wait(BOUND)
    assert result.failures[0].error_file in ("", "<N/A>")


@pytest.mark.parametrize(
    "options", [{"log_dir": "x"}, {"redirects": Std.OUT}, {"tee": {0: Std.ERR}}]
)
def test_a_logs_spec_and_its_parts_exclude_each_other(tmp_path, options):
    with pytest.raises(UsageError, match="give either logs_specs, or log_dir, redirects and tee"):
        start_processes("t", "echo", {0: "a"}, logs_specs=InFolder(tmp_path), **options)


def test_a_log_dir_given_twice_is_refused(tmp_path):
    with pytest.raises(UsageError, match="log_dir is given twice"):
        start_processes("t", "echo", {0: "a"}, None, str(tmp_path), log_dir="elsewhere")


def test_a_log_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LogDirectoryError):
        start_processes("t", "echo", {0: "a"}, log_dir=tmp_path / "file")


def test_a_program_that_does_not_exist_leaves_nothing(temporary):
    before = set(os.listdir("/proc/self/fd"))
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ProgramNotFoundError):
        start_processes("t", "/no/such/program", {0: "a", 1: "b"})
    assert os.listdir(temporary) == []
    assert set(os.listdir("/proc/self/fd")) == before
    assert signal.getsignal(signal.SIGTERM) is handler


def test_it_has_torchruns_parameters_in_torchruns_order():
    names = list(inspect.signature(start_processes).parameters)
    torchs = "name entrypoint args envs logs_specs log_line_prefixes start_method"
    assert names[:7] == torchs.split()


def test_the_context_takes_torchruns_arguments(tmp_path):
    context = SubprocessContext(
        name="t",
        entrypoint="echo",
        args={0: ("a",)},
        envs={0: {}},
        logs_specs=InFolder(tmp_path),
        log_line_prefixes={0: "x"},
        duplicate_stdout_filters=["a"],
        duplicate_stderr_filters=None,
    )
    context.start()
    assert context.wait(BOUND).return_values == {0: None}


@pytest.mark.parametrize(
    "code",
    [
        "import plaunch.process",
        "from plaunch.process import start_processes\n"
        "import os\n"
        "assert start_processes('t', 'true', {0: ()}, log_dir=os.devnull).wait(60)",
    ],
)
def test_starting_programs_loads_nothing_heavy(code):
    heavy = "torch asyncio multiprocessing tempfile uuid shutil json importlib.metadata"
    check = f"\nimport sys\nprint([m for m in {heavy.split()!r} if m in sys.modules])"
    path = f"import sys; sys.path[:0] = {sys.path!r}\n"
    done = run_python("-S", "-c", path + code + check)
    assert done.stdout == "[]\n", done.stderr


# --- as its users write it ------------------------------------------------------------------------

FUNCTION = """
import os
import sys

from plaunch.process import Std, start_processes


def trainer(a, b, c):
    print("train", a, b, c, "as local rank", os.environ["LOCAL_RANK"])
    print("warning from", os.environ["LOCAL_RANK"], file=sys.stderr)
    return a + b + c


if __name__ == "__main__":
    ctx = start_processes(
        name="trainer",
        entrypoint=trainer,
        args={0: (1, 2, 3), 1: (4, 5, 6)},
        envs={0: {"LOCAL_RANK": 0}, 1: {"LOCAL_RANK": 1}},
        log_dir=sys.argv[1],
        redirects=Std.ALL,
        tee={0: Std.ERR},
    )
    result = ctx.wait()
    print(result.is_failed(), result.return_values, type(ctx).__name__)
    for rank in sorted(result.stdouts):
        print(repr(open(result.stdouts[rank]).read()), repr(open(result.stderrs[rank]).read()))
"""


def test_two_trainers_as_a_function(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FUNCTION)
    done = run_python(script, tmp_path / "logs")
    assert done.stderr == "[trainer0]:warning from 0\n"
    assert done.stdout.splitlines() == [
        f"False {{0: 6, 1: 15}} {MultiprocessContext.__name__}",
        r"'train 1 2 3 as local rank 0\n' 'warning from 0\n'",
        r"'train 4 5 6 as local rank 1\n' 'warning from 1\n'",
    ]
    assert done.returncode == 0


def test_two_echoes_as_a_program(temporary, capfd):
    ctx = start_processes(
        name="echo",
        entrypoint="echo",
        args={0: "hello", 1: "world"},
        redirects={1: Std.OUT},
    )
    result = ctx.wait(BOUND)
    assert isinstance(ctx, SubprocessContext)
    assert result.return_values == {0: None, 1: None}
    assert not result.is_failed()
    assert capfd.readouterr().out == "hello\n"
    assert result.stdouts[0] == ""
    assert read(result.stdouts[1]) == "world\n"
    assert result.stdouts[1].startswith(str(temporary) + os.sep)
    assert result.stderrs == {0: "", 1: ""}


def test_a_program_leads_a_session_of_its_own():
    code = "import os, sys; sys.exit(os.getsid(0) != os.getpid())"
    program = start_program(sys.executable, ["-c", code], {}, None, None, 0)
    assert program.wait(BOUND) == 0


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("#!/bin/sh\n", 0o644, "it may not be executed by this user; see chmod"),
        ("no script", 0o755, "it is neither a binary for this system nor a script that"),
        (None, 0o755, "it is a directory"),
    ],
)
def test_why_a_program_cannot_be_executed(tmp_path, content, mode, why):
    path = tmp_path / "program"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    path.chmod(mode)
    with pytest.raises(ProgramNotExecutableError, match=why):
        start_program(str(path), [], {}, None, None, 0)
