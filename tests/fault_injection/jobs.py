"""Jobs with random faults, and the checks that must pass in spite of them.

    python tests/fault_injection/jobs.py [--backend c10d|c10d-torch|etcd-v2] [--runs N] [--seed N]
                               [--cables] [--preload MODULE]

`c10d-torch` is `c10d` with `store=torch`. Each run is a job of several agents with small workers;
its seed decides how many there are and what happens when: nodes arrive, leave, are killed or
paused, workers are killed, an etcd server is killed and comes back, and with `--cables` each node
is a namespace (which needs root) whose cable is cut. With `--preload` the workers are forked after
that import, and fork servers are killed or stopped. At the end the workers succeed. `check` has the
conditions. A finding is printed with its seed, and the folder of its run is kept.

Faults of launchers and workers are injected by the launchers themselves (plugin `fault_injection`),
when a file appears. This program itself causes the faults of launchers that are not running a
round, of fork servers, etcd and cables.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plaunch_rendezvous_etcd.testing import EtcdServer

from helpers.network import Network
from helpers.ports import free_port
from helpers.processes import is_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BOUND = 90.0  # seconds; enough for each step on a busy machine
CONF = "keep_alive_interval=0.5,keep_alive_max_attempt=6,last_call_timeout=1,join_timeout=60"
LOOK = 0.05  # seconds between two checks of the workers' messages
ENDING = 0.5  # seconds for orphans to end by themselves
INJECTED = 2.0  # seconds for a launcher to inject a fault after its file has changed
PAUSES = (0.3, 1.0, 2.0, 5.0)  # seconds
QUIET = 3.0  # seconds without a change after which a world is the last one

# A worker reports its variables in one write, and runs until the file `finish` exists. Only a
# forked worker has the preloaded module at its start.
WORKER = """\
import sys
is_forked = sys.argv[2] in sys.modules
import json, os, time
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
         "TORCHELASTIC_RESTART_COUNT", "PLAUNCH_ROUND")
me = {name: int(os.environ[name]) for name in names}
me |= {"pid": os.getpid(), "node": int(sys.argv[1]), "store": os.environ["MASTER_PORT"]}
me["forked"] = is_forked
fd = os.open("said", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(fd, json.dumps(me).encode() + b"\\n")
while not os.path.exists("finish"):
    time.sleep(0.05)
"""
_SERVERS = re.compile(rb"PLAUNCH_FORK_SERVER=\d+")  # a variable that workers do not have
AFRESH = "started afresh"  # in the launcher's message about workers that it does not fork


def is_fork_server(pid: int, folder: Path) -> bool:
    """Whether a process is a launcher's fork server in this folder, or not yet a worker."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        is_here = os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:  # it has ended, or belongs to another user
        return False
    return is_here and any(_SERVERS.fullmatch(variable) for variable in variables)


class Finding(Exception):
    """A violated condition."""


@dataclass
class Node:
    """One agent, and the faults that it got."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    done: list[str] = field(default_factory=list)
    told: int = 0  # number of faults requested from it

    def is_running(self) -> bool:
        return self.process.poll() is None

    def find_fork_server(self) -> int:
        """Its process id; 0 if there is none."""
        with contextlib.suppress(OSError):  # unless it has ended
            for task in os.listdir(f"/proc/{self.process.pid}/task"):
                children = Path(f"/proc/{self.process.pid}/task/{task}/children").read_text()
                for child in map(int, children.split()):  # oldest first, so before its workers
                    if is_fork_server(child, self.log.parent):
                        return child
        return 0


class Job:
    """One job in its own folder.

    Args:
        folder: for its files.
        backend: one of `BACKENDS`.
        chance: makes all random choices.
        network: the network of the nodes, if any.
        etcd: the server, if the backend needs one.
        preload: the module that is imported before workers are forked, if any.
    """

    def __init__(
        self,
        folder: Path,
        backend: str,
        chance: random.Random,
        network: Network | None,
        etcd: EtcdServer | None,
        preload: str = "",
    ) -> None:
        backend, is_torch, _ = backend.partition("-torch")
        self._store = ",store=torch" if is_torch else ""
        self.folder, self.chance, self.network, self.etcd = folder, chance, network, etcd
        self.preload = preload
        self.least = chance.randint(1, 2)
        self.most = self.least + chance.randint(0, 2)
        self.restarts = chance.randint(0, 2)
        self.workers = chance.randint(1, 2)  # of each node
        self.failures = 0  # number of injected failures
        self.nodes: list[Node] = []
        self.story: list[str] = []
        host = "127.0.0.1" if network is None else network.address(0)
        port = free_port()
        if etcd is not None:
            host, _, text = etcd.endpoint.rpartition(":")
            host, port = (host if network is None else network.own_address()), int(text)
        self._options = [
            f"--nnodes={self.least}:{self.most}",
            f"--nproc-per-node={self.workers}",
            f"--max-restarts={self.restarts}",
            f"--rdzv-backend={backend}",
            f"--rdzv-endpoint={host}:{port}",
            f"--rdzv-id=chaos-{folder.name}",
            "--exit-barrier-timeout=30",
            f"--log-dir={folder / 'logs'}",
            "--failure-bundles=none",
        ]
        if preload:
            self._options.append(f"--preload={preload}")
        self._backend = backend
        (folder / "worker.py").write_text(WORKER)

    # --- faults -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start another node."""
        number = len(self.nodes)
        conf = CONF
        within: tuple[str, ...] = ()
        environ = {**os.environ, "LOGLEVEL": "INFO"}
        if self.network is not None:
            within = self.network.within(number)
        if self._backend == "c10d":
            conf += f",is_host={'false' if number else 'true'}{self._store}"
        # Without `site` an interpreter starts sooner, and cannot become a fork server.
        interpreter = [sys.executable] if self.preload else [sys.executable, "-S", "-E"]
        faults = [
            f"kill:agent,step-file=kill.{number}",
            *(f"stop:agent,for={s}s,times=inf,step-file=stop.{number}.{s}" for s in PAUSES),
            *(
                f"kill:rank={rank},times=inf,step-file=fail.{number}.{rank}"
                for rank in range(self.most * self.workers)
            ),
        ]
        log = self.folder / f"node{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(*within, sys.executable, "-m", "plaunch"),
                    *(*self._options, f"--rdzv-conf={conf}", f"--inject={';'.join(faults)}"),
                    "--no-python",
                    *(*interpreter, "worker.py", str(number), self.preload or "none"),
                ],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.nodes.append(Node(number, process, log))
        self._note(f"node {number} starts")

    def kill(self, node: Node) -> None:
        """Simulate the failure of a machine."""
        self._note(f"node {node.number} is killed")
        node.done.append("kill")
        self._tell(node, f"kill.{node.number}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.process.wait(INJECTED)
        node.process.kill()  # without running workers it injects no fault itself
        node.process.wait()

    def leave(self, node: Node) -> None:
        """Preempt a machine, with a signal."""
        self._note(f"node {node.number} gets SIGTERM")
        node.done.append("leave")
        node.process.terminate()

    def pause(self, node: Node) -> None:
        """Suspend a launcher for a while, but not its workers, as in a container."""
        length = self.chance.choice(PAUSES)
        self._note(f"node {node.number} is paused for {length} s")
        node.done.append("pause")
        if self._alive_on(node):
            self._tell(node, f"stop.{node.number}.{length}")
            time.sleep(length)
        else:
            node.process.send_signal(signal.SIGSTOP)
            time.sleep(length)
            node.process.send_signal(signal.SIGCONT)

    def cut(self, node: Node) -> None:
        """Cut a cable for a while."""
        if self.network is None:
            return
        length = self.chance.choice((0.3, 2.0, 6.0))
        self._note(f"the cable of node {node.number} is cut for {length} s")
        node.done.append("cut")
        self.network.cut(node.number)
        time.sleep(length)
        self.network.mend(node.number)

    def fail(self, node: Node) -> None:
        """Kill a worker of a node."""
        alive = self._alive_on(node)
        if alive:
            said = self.chance.choice(alive)
            self._note(f"rank {said['RANK']} (pid {said['pid']}) on node {node.number} is killed")
            self._tell(node, f"fail.{node.number}.{said['RANK']}")
            node.done.append("fail")

    def hurt_fork_server(self, node: Node) -> None:
        """Kill or suspend a fork server."""
        signum = self.chance.choice((signal.SIGKILL, signal.SIGSTOP))
        pid = node.find_fork_server()
        if pid:
            self._note(f"the fork server (pid {pid}) of node {node.number} gets {signum.name}")
            node.done.append("hurt_fork_server")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def restart_etcd(self) -> None:
        """Kill the etcd server, and start it again with its data."""
        if self.etcd is not None:
            self._note("etcd is killed, and comes back")
            self.etcd.kill()
            time.sleep(self.chance.choice((0.0, 0.5, 2.0)))
            self.etcd.start()

    def hurt(self) -> None:
        """Cause a random fault from which the job can recover."""
        # If the store is on one node, the job cannot recover from its loss, as documented.
        first = 1 if self._backend == "c10d" else 0
        running = [n for n in self.nodes if n.is_running() and "leave" not in n.done]
        others = [node for node in running if node.number >= first]
        what = ["start", "pause", "fail", "restart_etcd", "cut"]
        if self.preload:
            what += ["hurt_fork_server", "hurt_fork_server"]
        if len(running) > self.least and others:
            what += ["kill", "kill", "leave"]
        if self.network is not None and len(self.nodes) == NODES:
            what.remove("start")
        kind = self.chance.choice(what)
        if kind == "restart_etcd":
            self.restart_etcd()
        elif kind == "start":
            if len(running) < self.most + 1:  # one spare
                self.start()
        elif running and kind in ("pause", "fail", "hurt_fork_server"):
            getattr(self, kind)(self.chance.choice(running))
        elif others:
            getattr(self, kind)(self.chance.choice(others))

    def _tell(self, node: Node, file: str) -> None:
        """Make the launcher of a node inject the fault of this file."""
        node.told += 1
        part = self.folder / f".{file}"
        part.write_text(str(node.told))
        part.rename(self.folder / file)

    # --- observations -----------------------------------------------------------------------------

    def said(self) -> list[dict[str, Any]]:
        """All messages of workers, in order."""
        path = self.folder / "said"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def _alive_on(self, node: Node) -> list[dict[str, Any]]:
        mine = [said for said in self.said() if said["node"] == node.number]
        return [said for said in mine if not is_gone(said["pid"])]

    def injected(self) -> list[dict[str, Any]]:
        """The faults that the launchers have injected into workers, by their logs."""
        logs = (self.folder / "logs").glob("*/chaos-*.jsonl")
        lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        return [line for line in lines if line.get("is_done") and line["rank"] is not None]

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + BOUND
        while not condition():
            if time.monotonic() > deadline:
                raise Finding(f"not within {BOUND:g} s: {what}")
            time.sleep(LOOK)

    def world(self) -> list[dict[str, Any]]:
        """The running workers, if they are exactly one whole world."""
        alive = [said for said in self.said() if not is_gone(said["pid"])]
        rounds = {
            (said["PLAUNCH_ROUND"], said["WORLD_SIZE"], said["TORCHELASTIC_RESTART_COUNT"])
            for said in alive
        }
        is_whole = len(rounds) == 1 and sorted(said["RANK"] for said in alive) == list(
            range(alive[0]["WORLD_SIZE"])
        )
        return alive if is_whole else []

    def has_settled(self) -> bool:
        """Whether the same world has run for a while, or no node runs any more."""
        before = self.world()
        if not before:
            return not any(node.is_running() for node in self.nodes)
        until = time.monotonic() + QUIET
        while time.monotonic() < until:
            time.sleep(LOOK)
            if self.world() != before:
                return False
        running = sum(node.is_running() for node in self.nodes)
        return len(before) // self.workers == min(running, self.most)

    def run(self) -> None:
        """Cause the faults, and then let the workers succeed."""
        for _ in range(self.chance.randint(self.least, self.most)):
            self.start()
        if self.chance.random() < 0.8:  # otherwise faults begin before there is a world
            self.until(self.world, "a first world")
        for _ in range(self.chance.randint(1, 6)):
            self.hurt()
            time.sleep(self.chance.choice((0.0, 0.2, 1.0, 2.5)))
        self.until(self.has_settled, "one world of all nodes, or the end")
        self._note("the workers may succeed")
        (self.folder / "finish").touch()
        self.until(
            lambda: not any(node.is_running() for node in self.nodes),
            "the end of all launchers",
        )
        self.failures = len(self.injected())
        self.check()

    def check(self) -> None:
        """Check the conditions after the end of the job.

        Raises:
            Finding: something is not.
        """
        said = self.said()
        worlds = defaultdict(list)
        for worker in said:
            worlds[worker["PLAUNCH_ROUND"], worker["store"]].append(worker)
        attempt, last = 0, -1
        for (number, _), workers in worlds.items():
            if number <= last:
                # A node that joins after all others have left begins the job anew.
                if not any("starts again" in node.log.read_text() for node in self.nodes):
                    raise Finding(f"round {number} comes after round {last}: {workers}")
                attempt = 0
            last = number
            ranks = Counter(worker["RANK"] for worker in workers)
            for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
                if len({worker[name] for worker in workers}) != 1:
                    raise Finding(f"round {number} has workers that differ in {name}: {workers}")
            world = workers[0]["WORLD_SIZE"]
            if max(ranks.values()) > 1 or not set(ranks) <= set(range(world)):
                raise Finding(f"round {number} of a world of {world} has ranks {dict(ranks)}")
            if world != workers[0]["GROUP_WORLD_SIZE"] * self.workers:
                raise Finding(f"round {number} has a world of {world}: {workers[0]}")
            if not self.least * self.workers <= world <= self.most * self.workers:
                raise Finding(f"round {number} has a world of {world}")
            for worker in workers:
                expected = worker["GROUP_RANK"] * self.workers + worker["LOCAL_RANK"]
                if worker["RANK"] != expected:
                    raise Finding(f"round {number} has a worker of another rank: {worker}")
            now = workers[0]["TORCHELASTIC_RESTART_COUNT"]
            if not attempt <= now <= self.restarts:
                raise Finding(f"round {number} is attempt {now}, after attempt {attempt}")
            attempt = now
        if attempt > self.failures:
            raise Finding(f"{attempt} restarts after {self.failures} failures")
        self._check_ends()
        if self.preload:
            self._check_forks()
        time.sleep(ENDING)
        left = [worker["pid"] for worker in said if not is_gone(worker["pid"])]
        if left:
            raise Finding(f"workers are left: {left}")
        left = [
            pid
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if is_fork_server(pid, self.folder)
        ]
        if left:
            raise Finding(f"fork servers are left: {left}")

    def _check_ends(self) -> None:
        codes = {node.number: node.process.returncode for node in self.nodes}
        failed = {code for code in codes.values() if code == 128 + signal.SIGKILL}
        if failed and self.failures <= self.restarts:
            raise Finding(f"{self.failures} failures ended the job, which had {self.restarts}")
        for node in self.nodes:
            text = node.log.read_text(errors="replace")
            for word in ("Traceback", "internal error"):
                if word in text:
                    raise Finding(f"node {node.number} says {word!r}")
            code = codes[node.number]
            if "kill" in node.done:
                continue
            allowed = {128 + signal.SIGKILL} if failed else {0}
            if failed and self._backend == "c10d" and "pause" in node.done:
                allowed.add(113)  # the store's host ended before this node read the result
            if node.number not in {worker["node"] for worker in self.said()}:
                # It joined after the job; with c10d, the store has ended with its host.
                allowed |= {112, 113} if failed else {113} if self._backend == "c10d" else set()
            if "leave" in node.done:
                # Before its signal handlers are set, a launcher ends like any program.
                allowed = {0, 128 + signal.SIGTERM, -signal.SIGTERM, *allowed}
            if code not in allowed:
                raise Finding(f"node {node.number} ended with {code}, and not {sorted(allowed)}")

    def _check_forks(self) -> None:
        """Check that workers are forked, unless their launcher logs a valid reason."""
        for node in self.nodes:
            is_excused = AFRESH in node.log.read_text(errors="replace")
            if is_excused and "hurt_fork_server" not in node.done:
                raise Finding(f"node {node.number} says {AFRESH!r}, and nothing was done to it")
            fresh = [w for w in self.said() if w["node"] == node.number and not w["forked"]]
            if fresh and not is_excused:
                raise Finding(f"node {node.number} has not forked these, and says nothing: {fresh}")

    def end(self) -> None:
        """Stop all processes."""
        for node in self.nodes:
            if node.is_running():
                node.process.send_signal(signal.SIGCONT)
                node.process.kill()
                node.process.wait()

    def _note(self, text: str) -> None:
        self.story.append(f"{time.strftime('%H:%M:%S')} {text}")


NODES = 6  # of a network
BACKENDS = ("c10d", "c10d-torch", "etcd-v2")


@contextlib.contextmanager
def surroundings(backend: str, cables: bool) -> Iterator[tuple[Network | None, EtcdServer | None]]:
    """The network and servers of a job."""
    with contextlib.ExitStack() as stack:
        network = None
        if cables:
            network = Network(NODES)
            stack.callback(network.remove)
            network.build()
        etcd = None
        if backend == "etcd-v2":
            host = "127.0.0.1" if network is None else network.own_address()
            etcd = stack.enter_context(EtcdServer(host=host))
        yield network, etcd


def run(backend: str, seed: int, *, cables: bool = False, preload: str = "") -> str:
    """Run one job; the finding and its folder, or empty."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{backend}-{seed}-"))
    with surroundings(backend, cables) as (network, etcd):
        job = Job(folder, backend, random.Random(seed), network, etcd, preload)
        try:
            job.run()
        except Finding as finding:
            story = "".join(f"\n    {line}" for line in job.story)
            return f"seed {seed} ({backend}): {finding}{story}\n    logs: {folder}"
        finally:
            job.end()
    shutil.rmtree(folder)
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run jobs; the exit code is 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--runs", type=int, default=10, help="of each backend (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (1)")
    parser.add_argument("--at-once", type=int, default=2, help="runs at the same time (2)")
    parser.add_argument("--cables", action="store_true", help="cut the cables of namespaces")
    parser.add_argument("--preload", default="", metavar="MODULE", help="fork the workers")
    args = parser.parse_args(argv)
    backends = args.backend or BACKENDS
    jobs = [(b, seed) for seed in range(args.seed, args.seed + args.runs) for b in backends]
    began = time.monotonic()
    findings = 0
    with ThreadPoolExecutor(args.at_once) as pool:
        for (backend, seed), found in zip(
            jobs,
            pool.map(lambda job: run(*job, cables=args.cables, preload=args.preload), jobs),
            strict=True,
        ):
            findings += bool(found)
            if found:
                print(found, flush=True)
            elif seed % 10 == 0:
                print(f"seed {seed} ({backend}) is done", flush=True)
    print(f"{len(jobs)} runs in {time.monotonic() - began:.0f} s, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
