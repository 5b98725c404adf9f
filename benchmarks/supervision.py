"""The reaction times of launchers to exits and signals: plaunch and torchrun in turn.

    python benchmarks/supervision.py [--repeat N] [--only WORD] [--json FILE] [--check]

Worker death to the launcher's exit and to restarted workers, SIGTERM to the end of all, teed
output, and the cost of an idle launcher. Both launchers run under the interpreter
that runs this script, with the same workers, which are bare Python. benchmarks/README.md says how
to read the table.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Launches, Measurement, command, start, write_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Sampler = Callable[[str], list[float]]

# A worker reports its steps through a named pipe, with the time; the monotonic clock is one for the
# whole system. Every message is one write that the kernel keeps in one piece.
WORKER = """\
import time
began = time.monotonic_ns()
import os, sys
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
said = os.open(os.environ["BENCHMARK_SAID"], os.O_WRONLY)
def say(word, when):
    os.write(said, b"%s %s %d %d\\n" % (word, rank.encode(), os.getpid(), when))
"""
# All wait; worker 1 exits on request. After a restart, workers exit at once.
FAILING = """\
say(b"up", began)
if attempt != "0":
    sys.exit(0)
if rank == "1":
    with open(os.environ["BENCHMARK_GO"], "rb") as go:
        go.read(1)
    say(b"ends", time.monotonic_ns())
    sys.exit(3)
time.sleep(600)
"""
COOPERATIVE = """\
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
say(b"up", began)
time.sleep(600)
"""
LINES = """\
import sys
write = sys.stdout.write
text = "x" * 86
for number in range(int(sys.argv[1])):
    write(f"{number:012d} {text}\\n")
"""


@dataclass(frozen=True)
class Message:
    """A report of a worker; `when` is in nanoseconds of the monotonic clock."""

    word: str
    rank: int
    pid: int
    when: int


class Speakers(Launches):
    """Launches whose workers run `WORKER`."""

    def hear(self, word: str, count: int) -> list[Message]:
        """Wait until `count` workers have reported `word`; return the messages by rank."""
        heard: list[Message] = []
        for line in self.pipes.hear(f"{count} workers of {self.processes[0].args!r} say {word!r}"):
            said, rank, pid, when = line.split()
            self.workers.add(int(pid))
            if said == word:
                heard.append(Message(said, int(rank), int(pid), int(when)))
            if len(heard) == count:
                break
        return sorted(heard, key=lambda message: message.rank)

    def kill(self, pid: int) -> int:
        """Kill a worker with SIGKILL; return the time in nanoseconds."""
        when = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        return when


class Job(Speakers):
    """One launch whose workers report their steps.

    Args:
        launcher: a key of `LAUNCHERS`.
        script: the workers' script.
        options: of the launcher.
    """

    def __init__(self, launcher: str, script: str, *options: str) -> None:
        super().__init__()
        self._argv = command(launcher, *options, script)

    def begin(self) -> None:
        """Start the launcher."""
        self.launch(self._argv)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The launcher."""
        return self.processes[0]

    def let_exit(self) -> int:
        """Let worker 1 call sys.exit(3); return the time in nanoseconds."""
        self.pipes.let_go()
        return self.hear("ends", 1)[0].when

    def ended(self, *pids: int) -> int:
        """Wait for the end of the launcher and of `pids`; return the time in nanoseconds."""
        measuring.wait_for_ends([self.process.pid, *pids], self._argv)
        return time.monotonic_ns()


class Samplers:
    """Takes samples from one launcher; `folder` is for scripts and output."""

    def __init__(self, folder: str, lines: int, idle: float) -> None:
        self._folder = folder
        self._line_count = lines
        self._idle_seconds = idle
        self._failing = write_script(folder, "failing.py", WORKER + FAILING)
        self._cooperative = write_script(folder, "cooperative.py", WORKER + COOPERATIVE)
        self._lines = write_script(folder, "lines.py", LINES)

    def death_to_exit(self, launcher: str, *, killed: bool) -> list[float]:
        """Milliseconds from the death of one of two workers to the launcher's end."""
        with Job(launcher, self._failing, "--nproc-per-node=2") as job:
            pid = job.hear("up", 2)[1].pid
            died = job.kill(pid) if killed else job.let_exit()
            ended = job.ended()
            if job.process.wait() == 0:
                raise BenchmarkError(f"{launcher} calls it a success that a worker died")
        return [(ended - died) / 1e6]

    def death_to_restart(self, launcher: str, *, killed: bool) -> list[float]:
        """Milliseconds from the death of one of two workers to the first line of both new ones."""
        if launcher == "bare":
            return [self._two_starts()]
        with Job(launcher, self._failing, "--nproc-per-node=2", "--max-restarts=1") as job:
            pid = job.hear("up", 2)[1].pid
            died = job.kill(pid) if killed else job.let_exit()
            restarted = max(message.when for message in job.hear("up", 2))
            job.ended()
            if job.process.wait() != 0:
                raise BenchmarkError(f"{launcher} failed although the restarted workers did not")
        return [(restarted - died) / 1e6]

    def _two_starts(self) -> float:
        """Milliseconds for two interpreters to reach their first line: no restart can be faster."""
        code = "import time; print(time.monotonic_ns())"
        begin = time.monotonic_ns()
        starts = [start([sys.executable, "-c", code], subprocess.PIPE) for _ in range(2)]
        return (max(int(measuring.finish(process)) for process in starts) - begin) / 1e6

    def stop(self, launcher: str) -> list[float]:
        """Milliseconds from SIGTERM to the end of the launcher and both workers."""
        with Job(launcher, self._cooperative, "--nproc-per-node=2") as job:
            pids = [message.pid for message in job.hear("up", 2)]
            asked = time.monotonic_ns()
            job.process.send_signal(signal.SIGTERM)
            return [(job.ended(*pids) - asked) / 1e6]

    def tee(self, launcher: str) -> list[float]:
        """Wall seconds of a job of two workers that write lines, and the launcher's own CPU."""
        if launcher == "bare":
            return [self._lines_alone()]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            console = os.path.join(folder, "console")
            logs = os.path.join(folder, "logs")
            options = ["--nproc-per-node=2", f"--log-dir={logs}", "--tee=3"]
            argv = command(launcher, *options, self._lines, str(self._line_count))
            with open(console, "wb") as file:
                begin = time.monotonic()
                process = start(argv, stdout=file.fileno())
                measuring.wait_for_ends([process.pid], argv)
                wall = time.monotonic() - begin
                cpu = measuring.cpu_seconds(process.pid)
                measuring.finish(process)
            written = glob.glob(os.path.join(logs, "*", "attempt_0", "*", "stdout.log"))
            counts = sorted(count_lines(path) for path in written)
            if counts != [self._line_count] * 2:
                raise BenchmarkError(f"{launcher} has {counts} lines in its log files")
            if launcher == "plaunch" and count_lines(console) != 2 * self._line_count:
                raise BenchmarkError(f"{count_lines(console)} lines on plaunch's console")
        return [wall, cpu]

    def _lines_alone(self) -> float:
        """Wall seconds of the same two workers without a launcher, writing to files."""
        with contextlib.ExitStack() as stack:
            files = [
                stack.enter_context(tempfile.TemporaryFile(dir=self._folder)) for _ in range(2)
            ]
            argv = [sys.executable, "-u", self._lines, str(self._line_count)]
            begin = time.monotonic()
            processes = [start(argv, stdout=file.fileno()) for file in files]
            for process in processes:
                measuring.finish(process)
            return time.monotonic() - begin

    def idle(self, launcher: str, workers: int) -> list[float]:
        """CPU of a launcher whose workers run, in percent of a core.

        Its helper processes count as well.
        """
        with Job(launcher, self._cooperative, f"--nproc-per-node={workers}") as job:
            pids = {message.pid for message in job.hear("up", workers)}
            time.sleep(1)  # exclude the rest of the start
            own = [job.process.pid, *(children(job.process.pid) - pids)]
            before, begin = sum(map(measuring.cpu_seconds, own)), time.monotonic()
            time.sleep(self._idle_seconds)
            used, seconds = sum(map(measuring.cpu_seconds, own)) - before, time.monotonic() - begin
            job.process.send_signal(signal.SIGTERM)
            job.ended(*pids)
        return [used / seconds * 100]


def children(pid: int) -> set[int]:
    found: set[int] = set()
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with open(path) as file:
            found.update(map(int, file.read().split()))
    return found


def count_lines(path: str) -> int:
    """Count the unchanged lines of a worker, after any prefix."""
    whole = re.compile(rb"\d{12} x{86}\n")
    with open(path, "rb") as file:
        return sum(whole.search(line) is not None for line in file)


Row = tuple[list[Measurement], "Sampler", "Sequence[str]"]


def rows(samplers: Samplers, launchers: Sequence[str], lines: int) -> list[Row]:
    """Return the measurements, the function that samples each, and the launchers.

    Most functions sample one quantity.
    """
    floor = ["bare", *launchers]
    result: list[Row] = []
    for killed, how in ((True, "SIGKILL"), (False, "sys.exit")):
        result += [
            (
                [Measurement(f"death to exit, {how}", "ms")],
                lambda name, killed=killed: samplers.death_to_exit(name, killed=killed),
                launchers,
            ),
            (
                [Measurement(f"death to restarted, {how}", "ms")],
                lambda name, killed=killed: samplers.death_to_restart(name, killed=killed),
                floor,
            ),
        ]
    result.append(([Measurement("SIGTERM to all gone", "ms")], samplers.stop, launchers))
    tee = [Measurement(f"tee, 2 x {lines} lines", "s"), Measurement("tee, launcher CPU", "s")]
    result.append((tee, samplers.tee, floor))
    for workers in (2, 64):
        result.append(
            (
                [Measurement(f"idle CPU, {workers} workers", "%")],
                lambda name, workers=workers: samplers.idle(name, workers),
                launchers,
            )
        )
    return result


def goals(measurements: Sequence[Measurement]) -> Iterator[Goal]:
    """Return the goals for the measurements."""
    for measurement in measurements:
        name = measurement.name
        if name.startswith("tee, 2"):
            if "torchrun" in measurement.samples:
                value = measurement.ratio("plaunch", "torchrun")
                yield Goal("tee: at most 1/3 of torchrun's wall time", value, 1 / 3)
            continue
        for start_of_name, limit, unit in (
            ("death to exit", 150, "ms"),
            ("death to restarted", 120, "ms"),
            ("idle CPU, 2 ", 0.1, "%"),
            ("idle CPU, 64 ", 1, "%"),
        ):
            if name.startswith(start_of_name):
                text = f"{name}: at most {limit} {unit}"
                yield Goal(text, measurement.median("plaunch"), limit)


def main() -> int:
    parser = measuring.parser(__doc__.partition("\n")[0], repeat=5)
    parser.add_argument(
        "--lines",
        type=measuring.positive,
        default=500_000,
        metavar="N",
        help="lines of 100 bytes that each of two teed workers writes (default: 500000)",
    )
    parser.add_argument(
        "--idle",
        type=measuring.positive,
        default=5,
        metavar="SECONDS",
        help="seconds to measure idle launchers (default: 5)",
    )
    measuring.add_only(parser)
    args = parser.parse_args()
    launchers = ["plaunch"] if args.no_torchrun else ["plaunch", "torchrun"]
    with tempfile.TemporaryDirectory() as folder:
        samplers = Samplers(folder, args.lines, args.idle)
        named = (
            (row, [measurement.name for measurement in row[0]])
            for row in rows(samplers, launchers, args.lines)
        )
        chosen = measuring.choose(parser, args.only, named)
        for launcher in launchers:
            samplers.death_to_exit(launcher, killed=True)  # warms caches; not counted
        for _ in range(args.repeat):
            for measurements, sample, names in chosen:
                for name in names:
                    # The baseline may have fewer samples.
                    for measurement, value in zip(measurements, sample(name), strict=False):
                        measurement.add(name, value)
    taken = [measurement for row in chosen for measurement in row[0]]
    measuring.print_platform(args.repeat)
    measuring.print_table(taken)
    return measuring.report(list(goals(taken)), taken, args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"supervision.py: {error}")
