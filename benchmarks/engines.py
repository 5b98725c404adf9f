"""What `plaunch --on` costs: one command that starts the agents of several nodes.

    python benchmarks/engines.py [--nodes N] [--hosts N] [--repeat N] [--check]

All nodes are on this machine, and have one worker each, which is bare Python. `local:N` is compared
with N torchruns that the benchmark starts at once, with the backend
c10d. Then workers of such a job write many lines as fast as they can. Last, one job runs over ssh,
with a server for each host on an address of loopback (tools/cluster). benchmarks/README.md says how
to read the table.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Measurement, command, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOOL = os.path.join(os.path.dirname(__file__), "..", "tools", "cluster")
STALL = 5.0  # seconds for which the output of the job over ssh is not read
LINES, WIDTH = 300, 1000  # lines of each of its workers, and characters of each
START_LIMIT = 120.0  # seconds
SHORT_LINES = 200_000  # that each worker writes as fast as it can
MOST_PER_LINE = 1.0  # microseconds

FIRST = """\
import os
os.write(1, f"worker {os.environ['RANK']}\\n".encode())
"""
MANY = f"""\
import os, sys, time
os.write(1, f"{{os.environ['RANK']}} -1 starts\\n".encode())
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
for number in range({LINES}):
    os.write(1, f"{{os.environ['RANK']}} {{number}} {{'x' * {WIDTH}}}\\n".encode())
"""


FAST = f"""\
import os, sys, time
rank = os.environ["RANK"]
os.write(1, f"{{rank}} starts\\n".encode())
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for begin in range(0, {SHORT_LINES}, 100):
    data = "".join(f"{{rank}} {{number}}\\n" for number in range(begin, begin + 100)).encode()
    while data:
        data = data[os.write(1, data):]
"""


class Job:
    """Launchers whose workers write to one pipe.

    Attributes:
        first: seconds until the first line.
        last: seconds until a line of every worker.
        lines: all lines so far.
    """

    def __init__(self, argvs: Sequence[Sequence[str]], workers: int) -> None:
        self._fd, out = os.pipe()
        self._rest = b""
        self.lines: list[bytes] = []
        began = time.monotonic()
        self.processes = [start(argv, stdout=out) for argv in argvs]
        os.close(out)
        self._read_until(1)
        self.first = time.monotonic() - began
        self._read_until(workers)
        self.last = time.monotonic() - began

    def _read_until(self, workers: int) -> None:
        deadline = time.monotonic() + START_LIMIT
        while len({words_of(line)[0] for line in self.lines}) < workers:
            if not select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))[0]:
                self.kill()
                raise BenchmarkError(f"{workers} workers have not written in {START_LIMIT:.0f} s")
            if not self._read():
                self.kill()
                raise BenchmarkError(f"the job ended before {workers} workers have written")

    def _read(self) -> bool:
        data = os.read(self._fd, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += lines
        return bool(data)

    def count_lines(self, least: int) -> int:
        """Read so many lines without keeping them; return their number.

        Raises:
            BenchmarkError: the job ended before.
        """
        count = 0
        while count < least:
            data = os.read(self._fd, 1 << 20)
            if not data:
                raise BenchmarkError(f"{count} of {least} lines have arrived")
            count += data.count(b"\n")
        return count

    def finish(self) -> None:
        """Read to the end, and require success."""
        while self._read():
            pass
        os.close(self._fd)
        for process in self.processes:
            measuring.finish(process)

    def kill(self) -> None:
        """Kill the launchers; their workers end, too."""
        for process in self.processes:
            process.kill()
            process.wait()


def words_of(line: bytes) -> list[bytes]:
    """Return the words of a worker's line, without the name of a node."""
    return line.split(b"] ", 1)[-1].removeprefix(b"worker ").split()


def agents(launcher: str, nodes: int, script: str) -> list[list[str]]:
    """Return the command of each node for a launcher that starts one agent."""
    endpoint = measuring.free_endpoint()
    options = [
        f"--nnodes={nodes}",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id=engines-{os.urandom(6).hex()}",
    ]
    return [command(launcher, *options, script)] * nodes


def measure_local(rows: dict[str, Measurement], name: str, job: Job) -> None:
    """Add the times of a job."""
    job.finish()
    rows["first"].add(name, job.first)
    rows["last"].add(name, job.last)


def measure_lines(rows: dict[str, Measurement], folder: str, nodes: int) -> None:
    """Add the processor time of a command that passes on many short lines.

    Raises:
        BenchmarkError: some do not arrive.
    """
    script = measuring.write_script(folder, "fast.py", FAST)
    go = os.path.join(folder, "go-fast")
    argv = command("plaunch", f"--on=local:{nodes}", "--nproc-per-node=1", script, go)
    job = Job([argv], nodes)
    used = -measuring.cpu_seconds(job.processes[0].pid)
    measuring.write_script(folder, "go-fast", "")
    lines = job.count_lines(nodes * SHORT_LINES)
    used += measuring.cpu_seconds(job.processes[0].pid)
    job.finish()
    rows["lines"].add("plaunch", used / lines * 1e6)


@contextlib.contextmanager
def ssh_servers(folder: str, count: int) -> Iterator[list[str]]:
    """Run ssh servers; yield the options of a command that uses them."""
    tool = [sys.executable, TOOL, f"--folder={folder}"]
    try:
        done = subprocess.run(
            [*tool, "start", "ssh", f"--nodes={count}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BenchmarkError(done.stderr.strip())
        yield [f"--on=ssh:@{folder}/hosts", f"--ssh-command=ssh -F {folder}/config"]
    finally:
        subprocess.run([*tool, "stop", "ssh"], check=False)


def measure_ssh(rows: dict[str, Measurement], folder: str, count: int, script: str) -> None:
    """Measure one job over ssh, whose output is not read for a while."""
    with ssh_servers(os.path.join(folder, "servers"), count) as options:
        go = os.path.join(folder, "go")
        job = Job([command("plaunch", *options, "--nproc-per-node=1", script, go)], count)
        rows["ssh"].add("plaunch", job.last)
        measuring.write_script(folder, "go", "")
        time.sleep(STALL)
        rows["memory"].add("plaunch", peak_memory(job.processes[0].pid))
        job.finish()
    check_order(job.lines, count)


def peak_memory(pid: int) -> float:
    """Return the greatest resident memory of a process so far, in MB."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmHWM"].split()[0]) / 1e3


def check_order(lines: Sequence[bytes], workers: int) -> None:
    """Require all lines of every worker, in their order, each with one node's name.

    Raises:
        BenchmarkError: some are missing or in another order.
    """
    numbers: dict[tuple[bytes, bytes], list[int]] = {}
    for line in lines:
        rank, number, _ = words_of(line)
        numbers.setdefault((line.split(b"]")[0], rank), []).append(int(number))
    if len(numbers) != workers or any(seen != [*range(-1, LINES)] for seen in numbers.values()):
        raise BenchmarkError("lines of a worker are missing, or are not in order")


def main() -> int:
    parser = measuring.parser(__doc__, repeat=5)
    parser.add_argument("--nodes", type=measuring.positive, default=4, metavar="N")
    parser.add_argument("--hosts", type=int, default=64, metavar="N", help="0: not over ssh")
    args = parser.parse_args()
    measuring.print_platform(args.repeat)
    nodes, hosts = args.nodes, args.hosts
    rows = {
        "first": Measurement(f"local:{nodes}, until the first worker's line", "s"),
        "last": Measurement(f"local:{nodes}, until all workers' lines", "s"),
        "lines": Measurement(f"local:{nodes}, processor time of the command for a line", "us"),
        "ssh": Measurement(f"ssh, {hosts} hosts, until all workers' lines", "s"),
        "memory": Measurement(f"ssh, {hosts} hosts, peak memory of the command", "MB"),
    }
    with tempfile.TemporaryDirectory() as folder:
        script = measuring.write_script(folder, "first.py", FIRST)
        for _ in range(args.repeat):
            argv = command("plaunch", f"--on=local:{nodes}", "--nproc-per-node=1", script)
            measure_local(rows, "plaunch", Job([argv], nodes))
            if not args.no_torchrun:
                measure_local(rows, "torchrun", Job(agents("torchrun", nodes, script), nodes))
        measure_lines(rows, folder, nodes)
        if hosts:
            many = measuring.write_script(folder, "many.py", MANY)
            measure_ssh(rows, folder, hosts, many)
    measurements = [row for row in rows.values() if row.samples]
    measuring.print_table(measurements)
    goals = []
    if not args.no_torchrun:
        text = f"local:{nodes}, until the first worker's line: at most 1/3 of torchrun's"
        goals.append(Goal(text, rows["first"].ratio("plaunch", "torchrun"), 1 / 3))
    text = f"{rows['lines'].name}: at most {MOST_PER_LINE:g} us"
    goals.append(Goal(text, rows["lines"].median("plaunch"), MOST_PER_LINE))
    if hosts:
        for name, limit in (("ssh", 10.0), ("memory", 60.0)):
            row = rows[name]
            text = f"{row.name}: at most {limit:g} {row.unit}"
            goals.append(Goal(text, row.median("plaunch"), limit))
    return measuring.report(goals, measurements, args)


if __name__ == "__main__":
    sys.exit(main())
