"""plaunch as the first process of a container, where strangers and their orphans come, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from plaunch.process.proc import read_process

from helpers.waiting import BOUND, wait_until

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


pytestmark = pytest.mark.needs("namespaces")


@pytest.fixture
def run_first(run_program):
    """Start a Python program as the first process of a container, or below a shell that is."""

    def run_first(*argv, below_shell=False, **options):
        shell = ("sh", "-c", '"$@"; exit $?', "sh") if below_shell else ()
        command = (*CONTAINER, *shell, sys.executable, *argv)
        start = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        return run_program("-c", start, *command, **options)

    return run_first


def first_process(unshare):
    """The number, out here, of the first process of a container."""
    path = f"/proc/{unshare.pid}/task/{unshare.pid}/children"

    def children():
        with open(path) as file:
            return file.read().split()

    return int(wait_until(children, "the first process")[0])


# --- signals --------------------------------------------------------------------------------------

# Waits in the middle of what is imported on the way to the workers.
WAIT_AT_IMPORT = """\
import sys, time
moment = sys.argv.pop(1)

class Wait:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == moment:
            print("here", file=sys.stderr, flush=True)
            time.sleep(600)

sys.meta_path.insert(0, Wait)
from plaunch.cli import entry_point
entry_point()
"""


MOMENTS = ["plaunch.cli.program", "plaunch.plugin.manager", "plaunch.launch", "plaunch.agent.local"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_starts_ends_it(run_first, moment, signum):
    """The kernel throws away what the first process has no handler for."""
    unshare = run_first(
        "-c", WAIT_AT_IMPORT, moment, "--no-python", "sleep", "600", stderr=subprocess.PIPE
    )
    assert "here\n" in iter(unshare.stderr.readline, "")
    os.kill(first_process(unshare), signum)
    unshare.communicate(timeout=BOUND)
    assert unshare.returncode == 128 + signum


WAIT_AS_AGENT = WAIT_AT_IMPORT.replace(
    "from plaunch.cli import entry_point\nentry_point()",
    "from plaunch_engines.node import main\nmain([sys.argv[1], ''])",
)
IGNORE_SIGTERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.mark.parametrize(
    ("before", "code"),
    [("", 128 + signal.SIGTERM), (IGNORE_SIGTERM, 128 + signal.SIGKILL)],
    ids=["starting", "stuck"],
)
def test_the_agent_of_an_engine_ends_with_its_connection(run_first, tmp_path, before, code):
    """Even while it starts, and if it is stuck: a container's first process cannot be killed."""
    streams = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    unshare = run_first("-c", before + WAIT_AS_AGENT, "plaunch.launch", str(tmp_path), **streams)
    settings = {"env": {}, "arguments": ["--no-python", "--", "sleep", "600"], "nonce": "0"}
    unshare.stdin.write(json.dumps(settings) + "\n")
    unshare.stdin.flush()
    assert "here\n" in iter(unshare.stderr.readline, "")
    unshare.communicate(timeout=BOUND)
    assert unshare.returncode == code


def test_a_signal_that_the_caller_ignores_stays_ignored(run_first):
    code = (
        "import signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from plaunch.cli import end_at_signals\n"
        "end_at_signals()\n"
        "assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN\n"
        "assert callable(signal.getsignal(signal.SIGTERM))\n"
    )
    unshare = run_first("-c", code)
    assert unshare.wait(BOUND) == 0, unshare.stderr.read()


# --- strangers ------------------------------------------------------------------------------------

STRANGER = """\
import os, signal, sys, time
folder, seconds = sys.argv[1:]
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    # It takes signals down, in order to be there when they are looked for.
    def note(signum, frame):
        open(os.path.join(folder, f"signal-{signum}"), "w").close()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, note)
    with open(os.path.join(folder, ".number"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(os.path.join(folder, ".number"), os.path.join(folder, f"stranger-{seconds}"))
    while os.getppid() != int(os.environ["HEIR"]):
        time.sleep(0.001)
    time.sleep(float(seconds))
    os._exit(0)
os.wait()
"""

GENERATIONS = """\
import os, sys, time
import descendants
from plaunch.process.proc import read_process

family, folder, kinds = sys.argv[1], sys.argv[2], sys.argv[3].split(",")

def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(condition)
        time.sleep(0.01)

def stranger(seconds):
    with open(os.path.join(folder, f"stranger-{seconds}")) as file:
        return read_process(int(file.read()))

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    for kind in kinds:
        descendants.start(family, kind)
    open(os.path.join(folder, "ready"), "w").close()
    wait_for(lambda: os.path.exists(os.path.join(folder, "go")))
    wait_for(lambda: stranger("0") is None)  # it has ended, and somebody has reaped it
    sys.exit(3)
there = stranger("600")
left = descendants.alive(family)
print("left:", left, "stranger:", there is not None and there.is_alive, flush=True)
"""

TAGGED = "child,stubborn,session,daemon,execd,closed,cleared"


@pytest.mark.parametrize("below_shell", [False, True], ids=["the first process", "below a shell"])
def test_only_the_jobs_orphans_are_stopped(run_first, family, tmp_path, below_shell):
    """A stranger's orphan goes to the first process; below it, all orphans are the job's."""
    script = tmp_path / "generations.py"
    script.write_text(GENERATIONS)
    folder = tmp_path / "strangers"
    folder.mkdir()
    kinds = TAGGED + ",lost" if below_shell else TAGGED
    options = ("--max-restarts=1", str(script), family.folder, str(folder), kinds)
    unshare = run_first("-m", "plaunch", *options, below_shell=below_shell, stdout=subprocess.PIPE)
    first = first_process(unshare)
    wait_until((folder / "ready").exists, lambda: f"workers, only {family.kinds()}")
    for seconds in ("600", "0"):
        code = ("-c", STRANGER, str(folder), seconds)
        enter = ("nsenter", f"--target={first}", "--pid", "--mount", sys.executable, *code)
        subprocess.run(enter, check=True, timeout=BOUND, env={**os.environ, "HEIR": "1"})
        wait_until((folder / f"stranger-{seconds}").exists, "the stranger")
    (folder / "go").touch()
    out, err = unshare.communicate(timeout=BOUND)
    assert (unshare.returncode, out) == (0, "left: [] stranger: True\n"), err
    assert [path.name for path in folder.glob("signal-*")] == []
    assert read_process(first) is None
