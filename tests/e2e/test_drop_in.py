"""Programs written for torchrun have the same result under torchrun and plaunch."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from helpers.machine_parts import find_missing
from helpers.programs import BOUND, run_python
from helpers.torchs_torchrun import allow_any_store

pytest.importorskip("torch.distributed.elastic")
pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN, PLAUNCH = "torch.distributed.run", "plaunch"
# Replacements for torch's modules in programs that call the launcher.
IN_CODE = {TORCHRUN: "torch.distributed.run", PLAUNCH: "plaunch_torchrun.run"}
LAUNCH = {TORCHRUN: "torch.distributed.launch", PLAUNCH: "plaunch_torchrun.launch"}


class Result:
    """The exit code and the output of a launch."""

    def __init__(self, done, folder):
        self.code = done.returncode
        self.out, self.err = done.stdout, done.stderr
        self.folder = folder

    def lines(self):
        """Return the lines on stdout, sorted, because ranks may write in any order."""
        return sorted(self.out.splitlines())

    def told(self):
        """Return the JSON output of each worker, by rank."""
        return sorted(map(json.loads, self.out.splitlines()), key=lambda told: told["RANK"])

    def __repr__(self):
        return f"Result({self.code}, {self.out}, {self.err})"


@pytest.fixture(
    autouse=True,
    params=["", pytest.param("torch", marks=pytest.mark.exhaustive)],
    ids=["", "forked"],
)
def _preloaded(request, plaunch):
    """Run all tests also with `--preload`, which torchrun does not have."""
    if request.param:
        plaunch.environ["PET_PRELOAD"] = request.param


@pytest.fixture
def run_both(plaunch, with_torch):
    """Run the same with torchrun and with plaunch; the command is created for each."""

    def run(module, words, stdin, environ):
        folder = plaunch.folder / module
        folder.mkdir(exist_ok=True)
        (folder / "stdin").write_text(stdin)
        run_words, options = words(module), {"cwd": folder, "env": {**plaunch.environ, **environ}}
        with (folder / "stdin").open() as given:
            options |= {"stdin": given, "timeout": BOUND}
            if module == PLAUNCH:
                done = run_python(*run_words, **options)
            else:  # which needs torch itself
                options["before"] = allow_any_store()
                if run_words[0] == "-m":
                    run_words = run_words[1:]
                else:
                    path, *own = run_words
                    run_words = [Path(path).stem, *own]
                    options["env"]["PYTHONPATH"] = str(PROGRAMS)
                done = with_torch.run(*run_words, **options)
        return Result(done, folder)

    def run_both(words, stdin="", **environ):
        return tuple(run(module, words, stdin, environ) for module in (TORCHRUN, PLAUNCH))

    return run_both


def check_same(results, *lines, code=0):
    """Assert that both exited with this code, and wrote these lines, or the same ones."""
    theirs, ours = results
    assert theirs.code == ours.code == code, results
    assert ours.lines() == theirs.lines() == (list(lines) or theirs.lines())


def launching(*words):
    """A command line of the launcher."""
    return lambda module: ["-m", module, *words]


def program(name):
    return str(PROGRAMS / f"{name}.py")


# The workers of torchrun connect to its store with libuv, whatever USE_LIBUV says.
LIBUV = pytest.mark.needs("libuv")

SCRIPTS = {
    # One test for all, because importing torch takes most of the time.
    "data loaders, a process group, a checkpoint and parallel training": (
        ["--standalone", "--nproc_per_node", "2", program("training"), "saved"],
        None,
    ),
    "a restart": (["--nproc-per-node=2", "--max-restarts=1", program("restarting")], None),
    "a program that is not python's": (
        ["--nproc-per-node=2", "--no-python", "/bin/sh", "-c", "echo $RANK/$WORLD_SIZE"],
        ["0/2", "1/2"],
    ),
    "a script in a spawned interpreter": (
        ["--nproc-per-node=2", "--run-path", program("arguments"), "--max-restarts=x"],
        ["0 __main__ --max-restarts=x", "1 __main__ --max-restarts=x"],
    ),
    "a macro among the arguments": (
        ["--nproc-per-node=2", program("arguments"), "${local_rank}", "a $HOME b", "-r", "3"],
        ["0 __main__ 0 a $HOME b -r 3", "1 __main__ 1 a $HOME b -r 3"],
    ),
}

# Covered faster by tests/e2e/test_preload.py, or slow.
MORE = {
    "nested multiprocessing": (["--nproc-per-node=1", program("nested")], ["[(0, '0'), (1, '0')]"]),
    "sharded training": (["--nproc-per-node=2", program("sharded")], None),
    "data loaders with all start methods": (["--nproc-per-node=2", program("loaders")], None),
    "multiprocessing with all start methods": (["--nproc-per-node=2", program("processes")], None),
    "children, other programs and a daemon": (["--nproc-per-node=2", program("forking")], None),
    "a changed environment": (["--nproc-per-node=2", program("environment")], None),
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *(
            pytest.param(*script, id=name, marks=LIBUV if "training" in name else ())
            for name, script in SCRIPTS.items()
        ),
        *(
            pytest.param(*script, id=name, marks=pytest.mark.exhaustive)
            for name, script in MORE.items()
        ),
    ],
)
def test_scripts(run_both, words, expected):
    theirs, ours = run_both(launching(*words))
    assert theirs.code == ours.code == 0, (theirs, ours)
    assert ours.lines()
    if words[-1] == program("restarting"):
        # The progress of the other worker before the first one fails is random.
        for result in (theirs, ours):
            assert {"rank 0, attempt 0", "rank 0, attempt 1", "rank 1, attempt 1"} <= set(
                result.lines()
            )
        return
    check_same((theirs, ours), *(expected or ()))
    if program("training") in words:
        for rank, line in enumerate(ours.lines()):
            assert line.startswith(f"rank {rank} of 2: 66.0 3.0 {4.0 * (rank + 1)} [")


def test_a_module_with_arguments_that_look_like_the_launchers(run_both):
    words = ["--nproc-per-node=2", "-m", "arguments", "--nnodes=9", "--nproc-per-node", "5", "-m"]
    shown = "__main__ --nnodes=9 --nproc-per-node 5 -m"
    done = run_both(launching(*words), PYTHONPATH=str(PROGRAMS))
    check_same(done, f"0 {shown}", f"1 {shown}")


@pytest.mark.exhaustive
def test_a_package(run_both):
    words = ["--nproc-per-node=2", "-m", "package", "x"]
    shown = "__main__ package package.__main__ package.part x"
    check_same(run_both(launching(*words), PYTHONPATH=str(PROGRAMS)), f"0 {shown}", f"1 {shown}")


@pytest.mark.exhaustive
def test_a_script_that_reads_and_a_debugger(run_both):
    words = launching("--nproc-per-node=1", program("reading"))
    done = run_both(words, (PROGRAMS / "reading.txt").read_text())
    check_same(done)
    assert "the rest: ['x', 'y', 'z']" in done[1].lines()


@pytest.mark.exhaustive
@pytest.mark.needs("c++")
def test_torchs_compiler_with_processes_of_its_own(run_both):
    words = launching("--nproc-per-node=2", program("compiled"))
    done = run_both(words, TORCHINDUCTOR_CACHE_DIR="cache", TORCHINDUCTOR_COMPILE_THREADS="2")
    check_same(done, "rank 0: 6.0 9.0 True", "rank 1: 6.0 9.0 True")


# Values that differ between any two launches, and those that differ on purpose
# (docs/differences.md).
CHANGING = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
}


def test_the_environment_of_workers(run_both):
    changing = {*CHANGING}
    if find_missing("libuv"):
        changing.add("TORCHELASTIC_USE_AGENT_STORE")  # USE_LIBUV=0 implies --worker-store=rank0
    theirs, ours = run_both(launching("--nproc-per-node=2", "--role=r", program("launched"), "x"))
    assert theirs.code == ours.code == 0, (theirs, ours)
    for their, our in zip(theirs.told(), ours.told(), strict=True):
        # Inherited from torchrun's process, which sets it for itself.
        their.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
        our.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
        assert set(our) == set(their)
        assert {name: value for name, value in our.items() if name not in changing} == {
            name: value for name, value in their.items() if name not in changing
        }
        assert our["launched"] is True
        assert our["MASTER_PORT"].isdecimal()


def test_a_recorded_failure(run_both, tmp_path):
    """Also writes the error file for the launcher's parent."""
    path = tmp_path / "reply.json"
    replies = []

    def words(module):
        if module == PLAUNCH:
            replies.append(json.loads(path.read_text())["message"])
            path.unlink()
        return ["-m", module, "--nproc-per-node=2", program("recorded_failure")]

    theirs, ours = run_both(words, TORCHELASTIC_ERROR_FILE=str(path))
    replies.append(json.loads(path.read_text())["message"])
    assert theirs.code == ours.code == 1, (theirs, ours)
    for result, reply in zip((theirs, ours), replies, strict=True):
        assert "ValueError: the data is gone" in result.err
        assert reply["message"] == "ValueError: the data is gone"
        assert reply["errorCode"] == 1
        assert "recorded_failure.py" in reply["extraInfo"]["py_callstack"]


@pytest.mark.parametrize(
    ("own", "lines", "code"),
    [
        (
            ["--nproc_per_node=2", "--precision=bf16", program("arguments"), "--precision=x"],
            ["0 __main__ --precision=x", "1 __main__ --precision=x", "precision bf16"],
            0,
        ),
        # Its except clause has torch's exception.
        (
            ["--nproc_per_node=1", "--no-python", "/bin/sh", "-c", "exit 7"],
            ["precision fp32", "rank 0 failed with 7"],
            1,
        ),
    ],
    ids=["success", "failure"],
)
def test_a_program_around_the_launcher(run_both, own, lines, code):
    done = run_both(lambda module: [program("wrapper"), IN_CODE[module], *own])
    check_same(done, *lines, code=code)


def test_a_function_with_a_configuration_of_torchs(run_both):
    module_of = {TORCHRUN: "torch.distributed.launcher", PLAUNCH: "plaunch_torchrun.run"}
    done = run_both(lambda module: [program("functions"), module_of[module]])
    check_same(done, "0 0 [10, 11, 12]", "1 1 [11, 12, 13]")


@pytest.mark.parametrize("more", [[], ["--use-env"]], ids=["local rank", "use env"])
def test_launch(run_both, more):
    def words(module):
        own = ["--nproc_per_node=2", *more, program("arguments"), "--use-env"]
        return ["-m", LAUNCH[module], *own]

    done = run_both(words, PYTHONWARNINGS="ignore")
    check_same(done)
    shown = "1 __main__ --use-env" if more else "1 __main__ --local-rank=1 --use-env"
    assert done[1].lines()[1] == shown


def test_log_files(run_both):
    words = ["--nproc-per-node=2", "--tee=0:3", "--redirects=1:1", "--log-dir=logs"]
    theirs, ours = done = run_both(launching(*words, "--rdzv-id=7", program("arguments"), "x"))
    check_same(done, "[default0]:0 __main__ x")
    for result in (theirs, ours):
        assert "[default0]:rank 0 on stderr" in result.err
        assert "rank 1 on stderr" in result.err.splitlines()
    assert files(ours) == files(theirs)
    assert files(ours)["7_*/attempt_0/1/stdout.log"] == "1 __main__ x\n"


def files(result):
    """Return the log files by name, without random parts; plaunch writes some only when needed."""
    root = result.folder / "logs"
    found = {}
    for path in root.rglob("*.log"):
        name = re.sub(r"^[^/]*_[^/_]*/", "7_*/", str(path.relative_to(root)))
        found[name] = path.read_text()
    return {name: text for name, text in found.items() if text}


def test_a_timer_of_torchs(run_both):
    words = launching("--nproc-per-node=1", program("timed"))
    theirs, ours = run_both(words, TORCHELASTIC_ENABLE_FILE_TIMER="1")
    assert theirs.lines() == ours.lines() == ["in time"]
    # torchrun also sends the signal to itself; that of older versions exits as after any failure.
    assert theirs.code in (-signal.SIGKILL, 1)
    assert ours.code == 128 + signal.SIGKILL
    assert "its timer 'long' had expired" in ours.err
