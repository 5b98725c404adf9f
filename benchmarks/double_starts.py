"""Two agents of one machine that start at the same moment: exactly one hosts the store.

    python benchmarks/double_starts.py [--elections N] [--launches N] [--json FILE] [--check]

An election is what decides the host, between two processes that begin in the same microsecond,
without the rest of an agent. In the second row both lose at first, as two sockets do that begin to
listen at the same moment. A launch is two whole agents of one job.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import socket
import struct
import sys
import time
import traceback
from dataclasses import dataclass, field

import measuring
from measuring import BenchmarkError, Goal, Measurement, command, start
from plaunch.errors import RendezvousConnectionError
from plaunch_rendezvous_c10d import hosting
from plaunch_rendezvous_c10d.election import HostElection
from plaunch_rendezvous_c10d.endpoint import StoreEndpoint
from plaunch_rendezvous_c10d.hosting import decide_hosting

STALL = 10.0  # seconds after which a start has stalled
_PAUSE = 0.05, 1.0  # seconds: the shortest and the longest that an agent pauses, twice


class Pair:
    """Memory that two processes share, to begin and end each step together."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)
        self.number = 0  # of this process
        self._steps = 0

    def meet(self, value: float = 0.0) -> tuple[float, float]:
        """Wait until both are here, without sleeping; return the values of both.

        Raises:
            BenchmarkError: the other one has not come in time.
        """
        self._steps += 1
        half = 1024 * (self._steps % 2)  # the other one may still read that of the last step
        struct.pack_into("d", self._memory, half + 16 * self.number, value)
        struct.pack_into("q", self._memory, half + 16 * self.number + 8, self._steps)
        deadline = time.monotonic() + measuring.LIMIT
        while self._step_of(1 - self.number, half) < self._steps:
            os.sched_yield()  # the other one may need this core
            if time.monotonic() > deadline:
                raise BenchmarkError("the other process does not come")
        values = [struct.unpack_from("d", self._memory, half + 16 * n)[0] for n in range(2)]
        return values[0], values[1]

    def _step_of(self, number: int, half: int) -> int:
        return int(struct.unpack_from("q", self._memory, half + 16 * number + 8)[0])


class Listening:
    """A store that is nothing but its listening socket."""

    identity = "benchmark"

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.port = listener.getsockname()[1]
        self.connector = Dialling(self.port)

    def has_guests(self) -> bool:
        return False

    def close(self) -> None:
        self.listener.close()


class Dialling:
    """Connects to the port, and hangs up."""

    subscribe = None

    def __init__(self, port: int) -> None:
        self.endpoint = StoreEndpoint("127.0.0.1", port)

    def connect(self) -> None:
        self.endpoint.dial(5.0).close()

    def close(self) -> None: ...


@dataclass
class Elections:
    """The outcome of some elections.

    Args:
        seconds: of the slower process, for each.
        repeated: in how many of them a process was not connected at its first attempt.
        hosts: how many hosts they had, together.
    """

    seconds: list[float] = field(default_factory=list)
    repeated: int = 0
    hosts: int = 0


def elect(port: int) -> tuple[float, int, HostElection]:
    """Decide, and connect as an agent does; return the seconds and the tries that it took."""
    election = HostElection(
        lambda: decide_hosting("127.0.0.1", port, is_local=True, is_requested=False),
        Listening,  # type: ignore[arg-type]
        Dialling(port),  # type: ignore[arg-type]
    )
    began = time.monotonic()
    with contextlib.suppress(RendezvousConnectionError):
        election.try_to_host()
    pause, tries = _PAUSE[0], 0
    while time.monotonic() < began + STALL:
        tries += 1
        try:
            election.connect()
            break
        except RendezvousConnectionError:
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _PAUSE[1])
    return time.monotonic() - began, tries, election


def run_elections(pair: Pair, count: int, *, must_lose: bool) -> Elections:
    """Run elections in this process and the other one, which calls it as well."""
    found = Elections()
    listen, losing = hosting.listen, [False]

    def lose_first(host: str, port: int, *, is_local: bool) -> socket.socket:
        if losing.pop() if losing else False:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return listen(host, port, is_local=is_local)

    hosting.listen = lose_first
    try:
        for _ in range(count):
            port = 0
            if pair.number == 0:
                with socket.create_server(("127.0.0.1", 0)) as sock:
                    port = sock.getsockname()[1]
            port = int(pair.meet(port)[0])
            losing[:] = [must_lose]
            pair.meet()
            taken, tries, election = elect(port)
            found.seconds.append(max(pair.meet(taken)))
            found.repeated += max(pair.meet(tries)) > 1
            found.hosts += int(sum(pair.meet(election.is_host())))
            election.close()
            pair.meet()
    finally:
        hosting.listen = listen
    return found


def measure_elections(count: int) -> dict[str, Elections]:
    """Run both kinds between this process and a forked one."""
    pair = Pair()
    child = os.fork()
    if child == 0:
        pair.number, code = 1, 1
        try:
            for must_lose in (False, True):
                run_elections(pair, count, must_lose=must_lose)
            code = 0
        except BaseException:  # noqa: BLE001 - a forked process must not continue as its parent
            traceback.print_exc()
        finally:
            os._exit(code)
    found = {
        name: run_elections(pair, count, must_lose=must_lose)
        for name, must_lose in (("elections", False), ("elections, both lose first", True))
    }
    if os.waitpid(child, 0)[1] != 0:
        raise BenchmarkError("the other process has failed")
    return found


def launch() -> float:
    """Run two agents of one job to their end; return the seconds."""
    options = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=double")
    endpoint = f"--rdzv-endpoint={measuring.free_endpoint()}"
    began = time.monotonic()
    agents = [
        start(command("plaunch", *options, endpoint, "--no-python", "true")) for _ in range(2)
    ]
    measuring.wait_for_ends([agent.pid for agent in agents], "two launches")
    codes = [agent.wait() for agent in agents]
    if any(codes):
        raise BenchmarkError(f"two launches ended with {codes}")
    return time.monotonic() - began


def goals(elections: dict[str, Elections], launches: list[float]) -> list[Goal]:
    """Return the goals: no stall, and one host each."""
    rows = {name: found.seconds for name, found in elections.items()} | {"launches": launches}
    found = []
    for name, seconds in rows.items():
        stalls = sum(taken >= STALL for taken in seconds)
        found.append(Goal(f"{name}: none of {len(seconds)} stalls", float(stalls), 0.0))
    for name, each in elections.items():
        wrong = abs(each.hosts - len(each.seconds))
        found.append(Goal(f"{name}: one host each", float(wrong), 0.0))
    return found


def main() -> int:
    parser = measuring.parser(__doc__.partition("\n")[0], repeat=1)
    for name, default in (("elections", 5000), ("launches", 200)):
        parser.add_argument(
            f"--{name}", type=measuring.positive, default=default, metavar="N",
            help=f"how many (default: {default})",
        )  # fmt: skip
    args = parser.parse_args()
    elections = measure_elections(args.elections * args.repeat)
    launches = [launch() for _ in range(args.launches * args.repeat)]
    measuring.print_platform(args.repeat)
    print("| | starts | tried again | median | slowest |")
    print("|---|---|---|---|---|")
    taken = []
    repeated = {name: str(each.repeated) for name, each in elections.items()}
    rows = {name: each.seconds for name, each in elections.items()} | {"launches": launches}
    for name, seconds in rows.items():
        row = Measurement(name, "ms", {"plaunch": [value * 1e3 for value in seconds]})
        taken.append(row)
        print(
            f"| {name} | {len(seconds)} | {repeated.get(name, '')} "
            f"| {row.median('plaunch'):.1f} ms | {max(seconds) * 1e3:.0f} ms |"
        )
    return measuring.report(goals(elections, launches), taken, args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"double_starts.py: {error}")
