"""Fixtures that run real command lines as a user does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest
from plaunch_rendezvous_etcd.testing.fixtures import (  # noqa: F401 - fixtures
    etcd_cluster,
    etcd_server,
    own_etcd_server,
)

from helpers.etcd_versions import without_version_warning
from helpers.forked_launches import with_torch as with_torch
from helpers.machine_parts import need, report_missing
from helpers.network import Network
from helpers.nodes import WORKER, write_whole
from helpers.ports import free_port
from helpers.processes import is_gone
from helpers.programs import run_python
from helpers.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from helpers.forked_launches import ForkedLaunch, LaunchServer

TIMEOUT = 60.0  # seconds; a hang is a failure, however slow the machine
PIP_TIMEOUT = 120.0  # seconds

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
EPOCHS = 70  # longer than any test needs

# The example, slowed down by a duration in a file, so that it still runs when a test injects
# faults. All output goes to one file, in chronological order.
TRAINING = f"""\
import sys, time
sys.path.insert(0, {str(EXAMPLES)!r})
sys.stdout = open("said", "a", buffering=1)
import train_ddp
train_epoch = train_ddp.train_epoch
def paced(*args):
    with open("pace") as file:
        time.sleep(float(file.read()))
    return train_epoch(*args)
train_ddp.train_epoch = paced
if __name__ == "__main__":
    train_ddp.main()
"""


class CommandLine:
    """Runs `python -m plaunch` in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "PLAUNCH_", "TORCHELASTIC_", "TORCH_ELASTIC_"))
            and name not in ("OMP_NUM_THREADS", "PYTHON_EXEC")
        }
        self.environ["LOGLEVEL"] = "WARNING"  # other tests check its log lines

    def write(self, name: str, text: str) -> str:
        """Write a script into the folder and return its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def popen(
        self,
        *argv: str,
        module: str = "plaunch",
        within: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a launch, which the caller must end; options are those of `subprocess.Popen`.

        `within` is the command of a program that starts it.
        """
        settings = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **options}
        command = [*within, sys.executable, "-m", module, *argv]
        return subprocess.Popen(command, env={**self.environ, **(environ or {})}, **settings)

    @contextlib.contextmanager
    def start(self, *argv: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
        """Start a launch with pipes as streams; an error in the block ends it."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with self.popen(*argv, environ=environ, **pipes) as process:
            try:
                yield process
            except BaseException:
                process.terminate()
                raise

    def run(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a launch to its end."""
        with self.start(*argv, **environ) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def plaunch(tmp_path: Path) -> CommandLine:
    """Run launches in a temporary folder."""
    return CommandLine(tmp_path)


@pytest.fixture
def loud(plaunch: CommandLine) -> None:
    """Show the default log lines of launches."""
    del plaunch.environ["LOGLEVEL"]


class Agent:
    """One launcher of a job on several nodes; its streams go to files."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes] | ForkedLaunch, folder: Path
    ) -> None:
        self.name = name
        self.process = process
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"

    @property
    def stdout(self) -> str:
        """Return the stdout of the launcher and its workers."""
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """Return the stderr of the launcher and its workers, without the warning of an old etcd."""
        return without_version_warning(self._err.read_text())

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines of its workers."""
        complete, _, _ = self.stdout.rpartition("\n")
        return [json.loads(line) for line in complete.splitlines()]

    def workers(self, round_: int | None = None) -> list[dict[str, Any]]:
        """Return the started workers of one round, or of all, by rank."""
        found = [line for line in self.lines() if "pid" in line]
        if round_ is not None:
            found = [worker for worker in found if int(worker["PLAUNCH_ROUND"]) == round_]
        return sorted(found, key=lambda worker: int(worker["RANK"]))

    def notices(self) -> list[dict[str, Any]]:
        """Return its workers' lines about SIGUSR1."""
        return [line for line in self.lines() if "notice" in line]

    def kill(self) -> None:
        """Kill it as a machine failure would, but not its workers."""
        self.process.kill()
        self.process.wait(TIMEOUT)

    def exit_code(self) -> int:
        """Wait for its end."""
        try:
            return self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            pytest.fail(f"agent {self.name} has not ended within {TIMEOUT} s:\n{self.stderr}")


class Agents:
    """Runs several agents of a job, whose workers are `WORKER`, in a temporary folder.

    Agents that need torch are forked with torch imported, so that they start quickly.
    """

    def __init__(self, plaunch: CommandLine, with_torch: Callable[[], LaunchServer]) -> None:
        self._with_torch = with_torch
        self.folder = plaunch.folder
        self.script = plaunch.write("worker.py", WORKER)
        self.all: list[Agent] = []
        self._plaunch = plaunch

    def start(self, *argv: str, name: str = "", **environ: str) -> Agent:
        """Start another agent; `argv` are options of plaunch. The worker gets its `name`."""
        name = name or f"node{len(self.all)}"
        return self.launch([*argv, self.script, name], name, environ)

    def launch(
        self, argv: list[str], name: str, environ: Mapping[str, str], within: tuple[str, ...] = ()
    ) -> Agent:
        """Start an agent with any script; `within` is the command of a program that starts it."""
        with (self.folder / f"{name}.out").open("wb") as out:
            with (self.folder / f"{name}.err").open("wb") as err:
                process = self._start(argv, environ, within, out, err)
        agent = Agent(name, process, self.folder)
        self.all.append(agent)
        return agent

    def _start(
        self,
        argv: list[str],
        environ: Mapping[str, str],
        within: tuple[str, ...],
        out: BinaryIO,
        err: BinaryIO,
    ) -> subprocess.Popen[bytes] | ForkedLaunch:
        uses_torch = any("store=torch" in word or "store_type=file" in word for word in argv)
        if within or not uses_torch:
            return self._plaunch.popen(
                *argv, within=within, environ=environ, stdout=out, stderr=err
            )
        with open(os.devnull, "rb") as nothing:
            return self._with_torch().start(
                "plaunch",
                *argv,
                cwd=self.folder,
                environ={**self._plaunch.environ, **environ},
                stdin=nothing.fileno(),
                stdout=out.fileno(),
                stderr=err.fileno(),
            )

    def tell(self, name: str, code: int) -> None:
        """Let workers exit; see `WORKER` for the names."""
        write_whole(self.folder / name, code)

    def finish(self, *agents: Agent) -> None:
        """Let all workers succeed; then these agents do, too."""
        self.tell("exit", 0)
        assert [agent.exit_code() for agent in agents] == [0] * len(agents)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition holds; `what` describes it in the error."""

        def explain() -> str:
            return what + "".join(f"\n--- {a.name}\n{a.stdout}{a.stderr}" for a in self.all)

        wait_until(condition, explain)

    def until_round(self, round_: int, *agents: Agent, workers: int = 1) -> list[dict[str, Any]]:
        """Wait for the workers of a round on all `agents`; return them by rank."""
        self.until(
            lambda: all(len(agent.workers(round_)) == workers for agent in agents),
            f"round {round_} on {', '.join(agent.name for agent in agents)}",
        )
        found = [worker for agent in agents for worker in agent.workers(round_)]
        return sorted(found, key=lambda worker: int(worker["RANK"]))

    def until_gone(self, *pids: int) -> None:
        """Wait until processes have ended."""
        self.until(lambda: all(map(is_gone, pids)), f"processes {pids} are gone")

    def end(self) -> None:
        """End all running launches."""
        for agent in self.all:
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGTERM)
        for agent in self.all:
            try:
                agent.process.wait(10.0)
            except subprocess.TimeoutExpired:
                agent.process.kill()
                agent.process.wait()


@pytest.fixture
def ctl(plaunch: CommandLine) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run `plaunchctl`, for launches of this test only; the result has its output."""
    with tempfile.TemporaryDirectory(prefix="ctl") as folder:  # short enough for a socket
        plaunch.environ["PLAUNCH_RUNTIME_DIR"] = folder

        def ctl(*words: str) -> subprocess.CompletedProcess[str]:
            program = "from plaunch_control.cli import entry_point; entry_point()"
            return subprocess.run(
                [sys.executable, "-c", program, *words],
                env=plaunch.environ,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        yield ctl


@pytest.fixture
def agents(plaunch: CommandLine, request: pytest.FixtureRequest) -> Iterator[Agents]:
    """Run several agents of one job."""
    agents = Agents(plaunch, lambda: request.getfixturevalue("with_torch"))
    yield agents
    agents.end()


@pytest.fixture
def endpoint_of(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return an endpoint for a backend; skips if the backend is not available."""

    def endpoint_of(backend: str) -> str:
        if backend == "c10d":
            pytest.importorskip("torch.distributed")
            return f"127.0.0.1:{free_port()}"
        pytest.importorskip("grpc")
        pytest.importorskip("google.protobuf")
        return request.getfixturevalue("etcd_server").endpoint

    return endpoint_of


@pytest.fixture
def memory_group() -> Iterator[Callable[[int], list[str]]]:
    """Create a control group with a memory limit; return the command that runs a program in it.

    Skips if this user may not create one.
    """
    with contextlib.ExitStack() as stack:

        def memory_group(limit: int) -> list[str]:
            for root, name in (
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                ("/sys/fs/cgroup", "memory.max"),
            ):
                group = Path(root, f"plaunch_test_{os.getpid()}")
                with contextlib.suppress(OSError):
                    group.mkdir()
                    stack.callback(group.rmdir)
                    (group / name).write_text(str(limit))
                    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
            return report_missing("control group", "none can be made for memory")

        yield memory_group


class Training:
    """Runs the training example on several nodes, slowed down until `finish`."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._folder = agents.folder
        self._script = self._folder / "train.py"
        self._script.write_text(TRAINING)
        (self._folder / "said").touch()
        self._pace("0.5")

    def start(self, *argv: str, interface: str, within: tuple[str, ...] = ()) -> Agent:
        """Start another agent; `interface` is the network interface of its workers."""
        return self._agents.launch(
            [*argv, str(self._script), f"--epochs={EPOCHS}"],
            f"node{len(self._agents.all)}",
            {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"},
            within,
        )

    def said(self) -> str:
        """Return the output of rank 0 on any node."""
        return (self._folder / "said").read_text()

    def worlds(self) -> list[int]:
        """Return the sizes of all worlds that have trained."""
        return [int(size) for size in re.findall(r"^(\d) workers on", self.said(), re.M)]

    def epochs(self) -> list[int]:
        """Return the trained epochs; unsaved ones are repeated."""
        return [int(number) for number in re.findall(r"^epoch +(\d+)/", self.said(), re.M)]

    def until_world(self, size: int) -> None:
        """Wait until the latest world has this size."""
        self._agents.until(lambda: self.worlds()[-1:] == [size], f"a world of {size}")

    def until_further(self, count: int) -> None:
        """Wait for `count` more epochs."""
        before = max(self.epochs(), default=0)
        self._agents.until(
            lambda: self.epochs()[-1:] >= [before + count], f"{count} epochs after {before}"
        )

    def hurry(self) -> None:
        """Let it finish at full speed."""
        self._pace("0")

    def check(self) -> None:
        """Assert that all epochs were trained, and that no world started from the beginning."""
        assert f"done: {EPOCHS} epochs" in self.said()
        resumed = [int(epoch) for epoch in re.findall(r"continuing after epoch (\d+)", self.said())]
        assert resumed == sorted(resumed)
        assert len(resumed) == len(self.worlds()) - 1
        assert sorted(set(self.epochs())) == list(range(1, EPOCHS + 1))
        for agent in self._agents.all:
            assert "restart 1 of" not in agent.stderr

    def _pace(self, seconds: str) -> None:
        write_whole(self._folder / "pace", seconds)


@pytest.fixture
def training(agents: Agents) -> Training:
    """Run training in a temporary folder."""
    pytest.importorskip("torch.distributed")
    pytest.importorskip("sklearn")
    return Training(agents)


@pytest.fixture
def build_network() -> Iterator[Callable[..., Network]]:
    """Create networks that are removed after the test; skips if that is not permitted."""
    need("networks")
    with contextlib.ExitStack() as stack:

        def build(nodes: int, switches: int = 1) -> Network:
            network = Network(nodes, switches)
            stack.callback(network.remove)
            network.build()
            return network

        yield build


@pytest.fixture(scope="module")
def source(request, tmp_path_factory):
    """A copy of the module's folder PACKAGE, so that builds do not change it."""
    package = request.module.PACKAGE
    copy = tmp_path_factory.mktemp("source") / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return copy


@pytest.fixture(scope="module")
def site(tmp_path_factory, source):
    """A folder into which pip has installed the package without network access."""
    folder = tmp_path_factory.mktemp("site")
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    words += ["--target", folder, source]
    done = run_python("-m", "pip", "install", *words, timeout=PIP_TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def installed(plaunch, site):
    """A launcher that finds the package."""
    plaunch.environ["PYTHONPATH"] = str(site)
    return plaunch


@pytest.fixture
def run_tests_of_package(installed, source):
    """Run the package's own tests, and return pytest's output."""

    def run(timeout=180.0, at_once=0):
        environ = {**installed.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environ.pop("PYTEST_ADDOPTS", None)
        words = ["-q", "-p", "no:cacheprovider", "-p", "xdist.plugin", f"--numprocesses={at_once}"]
        done = run_python("-m", "pytest", *words, cwd=source, env=environ, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def rooms_imported(request: pytest.FixtureRequest) -> set[str]:
    """Return the modules of plaunch that PACKAGE imports, without the prefix `plaunch.`."""
    return {
        name
        for path in (request.module.PACKAGE / "src").rglob("*.py")
        for name in re.findall(r"^\s*(?:from|import) plaunch\.([\w.]+)", path.read_text(), re.M)
    }
