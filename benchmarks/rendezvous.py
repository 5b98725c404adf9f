"""How long N nodes take to form a round, and what each node sends and receives.

    python benchmarks/rendezvous.py --backend c10d --nodes 1024 [--peer torch] [--json]
    python benchmarks/rendezvous.py --backend etcd-v2 --nodes 256 [--peer torch] [--json]

All nodes are in this one process, with the threads and connections that each would have on its own
machine. For etcd a server is started beside it, unless --endpoint names one. benchmarks/README.md
says how to read the table.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import platform
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from measuring import (
    ETCD,
    BenchmarkError,
    Goal,
    etcd_server,
    free_endpoint,
    goals_as_json,
    positive,
    print_goals,
    print_platform,
)
from plaunch.errors import PlaunchError
from plaunch.plugin import RENDEZVOUS
from plaunch.plugin.manager import PluginManager
from plaunch.rendezvous import RendezvousParameters
from plaunch_membership import (
    Add,
    Append,
    CompareSet,
    DynamicRendezvousHandler,
    MultiGet,
    RendezvousStore,
    Set,
    StoreAccess,
    WriteHeartbeat,
)
from plaunch_membership.testing import MemoryBoard, wrap_connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.rendezvous import RendezvousHandler
    from plaunch_membership import BatchedOperation

SMALL = 64  # nodes; the baseline of growth, and the size of torch's peer
SIZES = (SMALL, 256, 1024, 4096)  # nodes; those up to --nodes are measured
LIMIT = 600.0  # seconds for one round
GROWTH = 5  # percent by which the bytes of a node may grow: larger numbers have more digits
ALLOWED = {  # seconds
    ("c10d", 1024): 2.0,
    ("c10d", 4096): 9.0,
    ("etcd", 256): 10.0,
    ("etcd-v2", 256): 10.0,
}
PEER_OF_ETCD = 32  # nodes; torch's own over etcd
STACK = 256 << 10  # bytes for each of thousands of threads
SWITCH_INTERVAL = 0.2  # seconds
FILES_PER_NODE = 8  # both ends of three connections, and some spare ones
KEPT_UP = ("/beat/", "/refusal/")  # keys that a node reads once in each keep-alive interval

READ, WRITTEN = "bytes read", "bytes written"
Counts = Counter[tuple[str, str]]  # by routine and operation; of bytes, by what they are


class CountingStore(RendezvousStore):
    """A connection that counts its requests and their bytes, by the routine of its node."""

    def __init__(self, inner: RendezvousStore, counts: Counts) -> None:
        self._inner = inner
        self._counts = counts

    def note(self, operation: str, keys: Sequence[str], read: object = (), *values: bytes) -> None:
        """Note a request: its keys, what it has read (values in lists), and what it has written."""
        # The routines' threads are named after them: writer, watcher, leader.
        routine = threading.current_thread().name.rpartition("-")[2]
        is_beat = operation == "beat" or any(part in key for key in keys for part in KEPT_UP)
        kind = "heartbeats" if is_beat and operation != "batch" else routine
        size = sum(map(len, keys))
        self._counts[kind, operation] += 1
        self._counts[kind, READ] += _size_of(read) + (0 if values else size)
        self._counts[kind, WRITTEN] += sum(map(len, values)) + (size if values else 0)

    def set(self, key: str, value: bytes) -> None:
        self._inner.set(key, value)
        self.note("set", [key], (), value)

    def add(self, key: str, amount: int) -> int:
        total = self._inner.add(key, amount)
        self.note("add", [key], b"%d" % total)
        return total

    def append(self, log: str, value: bytes) -> int:
        ticket = self._inner.append(log, value)
        self.note("append", [log], (), value)
        return ticket

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        held = self._inner.compare_set(key, expected, desired)
        self.note("compare_set", [key], held, desired)
        return held

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        values = self._inner.multi_get(keys)
        self.note("multi_get", keys, values)
        return values

    def wait(self, key: str, timeout: float) -> bytes | None:
        value = self._inner.wait(key, timeout)
        # A long wait may be split into several operations, which count as one.
        if value is not None:
            self.note("wait", [key], value)
        return value

    def wait_then_get(self, key: str, timeout: float, others: Sequence[str]) -> list[bytes | None]:
        values = self._inner.wait_then_get(key, timeout, others)
        if values[0] is not None:
            self.note("wait", [key, *others], values)
        return values

    def batch(self, operations: Sequence[BatchedOperation]) -> list[object]:
        results = self._inner.batch(operations)
        keys: list[str] = []
        written: list[bytes] = []
        for operation in operations:
            if isinstance(operation, MultiGet):
                keys += operation.keys
            elif isinstance(operation, Append):
                keys.append(operation.log)
                written.append(operation.value)
            elif isinstance(operation, CompareSet):
                keys.append(operation.key)
                written.append(operation.desired)
            elif isinstance(operation, Add):
                keys.append(operation.key)
            elif isinstance(operation, (Set, WriteHeartbeat)):
                keys.append(operation.key)
                written.append(operation.value)
        self.note("batch", keys, results, *written)
        return results

    def delete(self, key: str) -> None:
        self._inner.delete(key)
        self.note("delete", [key])

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        self._inner.multi_set(items)
        self.note("multi_set", list(items), (), *items.values())

    def beat(self, key: str, value: bytes) -> float | None:
        lease = self._inner.beat(key, value)
        self.note("beat", [key], (), value)
        return lease

    def close(self) -> None:
        self._inner.close()


def _size_of(read: object) -> int:
    """The bytes of values, in lists or alone."""
    if isinstance(read, (list, tuple)):
        return sum(map(_size_of, read))
    return len(read) if isinstance(read, bytes) else 0


@dataclass
class Round:
    """The cost of one round."""

    nodes: int
    seconds: float
    cpu_seconds: float
    operations: list[int]  # of each node that does not lead, without the two kinds below
    leader: int = 0  # operations of the leading node: its part as any node, and its pass over all
    heartbeats: int = 0  # of all nodes: their heartbeats, and looking after those of others
    bytes_read: float = 0.0  # of each node that does not lead, on average
    bytes_written: float = 0.0

    @property
    def bytes_per_node(self) -> float:
        return self.bytes_read + self.bytes_written

    @property
    def ops_per_node(self) -> float:
        return statistics.fmean(self.operations)

    def as_json(self) -> dict[str, object]:
        return {
            "nodes": self.nodes,
            "seconds": round(self.seconds, 4),
            "cpu_seconds": round(self.cpu_seconds, 4),
            "ops_per_node": round(self.ops_per_node, 3),
            "max_ops_per_node": max(self.operations),
            "leader_ops": self.leader,
            "heartbeat_ops": self.heartbeats,
            "bytes_read_per_node": round(self.bytes_read),
            "bytes_written_per_node": round(self.bytes_written),
        }


class Backend:
    """Creates the handlers of a job, all over one store."""

    def __init__(self, name: str, endpoint: str, conf: Mapping[str, str]) -> None:
        self.name = name
        self._endpoint = endpoint
        self._conf = conf
        self._create = None if name == "memory" else PluginManager.create().get(RENDEZVOUS, name)

    @contextlib.contextmanager
    def job(self, nodes: int) -> Iterator[tuple[list[RendezvousHandler], list[Counts]]]:
        """Return the handlers of a job of `nodes` nodes, and their operation counters."""
        run_id = f"benchmark-{os.urandom(6).hex()}"
        endpoint = self._endpoint or free_endpoint()
        board = MemoryBoard()
        handlers: list[RendezvousHandler] = []
        counts: list[Counts] = []
        try:
            for _ in range(nodes):
                params = RendezvousParameters(
                    self.name, endpoint, run_id, nodes, nodes, "127.0.0.1", **self._conf
                )
                if self._create is None:
                    handler = DynamicRendezvousHandler(
                        params, StoreAccess(board.connect, "127.0.0.1")
                    )
                else:
                    handler = self._create(params)
                handlers.append(handler)
                counts.append(count(handler))
            yield handlers, counts
        finally:
            release(handlers)


def count(handler: RendezvousHandler) -> Counts:
    """Count the operations of a handler that has not connected yet."""
    counts: Counts = Counter()
    if not isinstance(handler, DynamicRendezvousHandler):
        raise BenchmarkError(f"{handler.get_backend()!r} does not work over a store of ours")
    wrap_connections(handler, lambda connect: lambda: CountingStore(connect(), counts))
    return counts


def release(handlers: Sequence[RendezvousHandler]) -> None:
    """Close the job, and let go of all nodes; the first one, which may host the store, at last."""
    if not handlers:
        return
    handlers[0].set_closed()
    deadline = time.monotonic() + LIMIT
    while not all(handler.is_closed() for handler in handlers) and time.monotonic() < deadline:
        time.sleep(0.01)
    threads = [threading.Thread(target=handler.shutdown) for handler in handlers[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    handlers[0].shutdown()


def meet(joins: Sequence[Callable[[], tuple[int, int]]]) -> tuple[float, float]:
    """Let all nodes join at once; seconds from the first call to the last return, and CPU seconds.

    Each of `joins` blocks until its node is in a round, and returns its rank and the world's size.
    """
    barrier = threading.Barrier(len(joins))
    began: list[float] = []
    ended: list[float] = []
    cpu_began: list[float] = []
    results: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def run(join: Callable[[], tuple[int, int]]) -> None:
        try:
            barrier.wait(LIMIT)
            cpu_began.append(time.process_time())
            began.append(time.perf_counter())
            results.append(join())
            ended.append(time.perf_counter())
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(join,), daemon=True) for join in joins]
    gc.collect()
    gc.freeze()  # all that torch consists of would be looked through for each of a thousand nodes
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    gc.unfreeze()
    cpu = time.process_time() - min(cpu_began, default=0.0)
    if errors:
        raise BenchmarkError(f"a node could not join: {errors[0]}") from errors[0]
    size = len(joins)
    if sorted(results) != [(rank, size) for rank in range(size)]:
        raise BenchmarkError(
            f"{len(results)} of {size} nodes have met, or not under their own rank"
        )
    return max(ended) - min(began), cpu


def measure(backend: Backend, nodes: int) -> Round:
    """One round of `nodes` nodes."""
    with backend.job(nodes) as (handlers, counts):

        def join_of(handler: RendezvousHandler) -> Callable[[], tuple[int, int]]:
            def join() -> tuple[int, int]:
                info = handler.next_rendezvous()
                return info.rank, info.world_size

            return join

        seconds, cpu = meet([join_of(handler) for handler in handlers])
        seen = [Counter(own) for own in counts]
    result = Round(nodes, seconds, cpu, [])
    for own in seen:
        result.heartbeats += total(own, "heartbeats")
        rest = sum(total(own, routine) for routine in ("writer", "watcher", "leader"))
        if total(own, "leader"):
            result.leader += rest
        else:
            result.operations.append(rest)
            for name in ("writer", "watcher"):
                result.bytes_read += own[name, READ] / max(nodes - 1, 1)
                result.bytes_written += own[name, WRITTEN] / max(nodes - 1, 1)
    if not result.operations:  # a single node leads itself
        result.operations.append(result.leader)
    return result


def total(counts: Counts, routine: str) -> int:
    return sum(
        number
        for (name, what), number in counts.items()
        if name == routine and what not in (READ, WRITTEN)
    )


class PeerError(Exception):
    """torch's own cannot be measured here."""


def measure_torch(nodes: int) -> Round:
    """The same with torch's own handlers, over its TCPStore."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect() -> tuple[Any, Any]:
        store = TCPStore("127.0.0.1", server.port, is_master=False)
        return C10dRendezvousBackend(store, "benchmark"), store

    return measure_torch_over(connect, nodes)


def measure_torch_etcd(nodes: int) -> Round:
    """The same with torch's own handlers, over the API that etcd had before version 3.6.

    Raises:
        PeerError: the client that torch needs is missing, or the server does not speak that API.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # torch has a stand-in for this module, which fails when it is used.
    if find_spec("etcd") is None:
        raise PeerError("it needs the package python-etcd, which is not installed")
    from torch.distributed.elastic.rendezvous import RendezvousParameters as Parameters
    from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import create_backend

    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(etcd_server("--enable-v2"))
        except BenchmarkError as error:
            raise PeerError(
                f"no etcd with the v2 API is available: {error}".splitlines()[0]
            ) from error
        params = Parameters("etcd-v2", server.endpoint, "benchmark", nodes, nodes, "127.0.0.1")
        return measure_torch_over(lambda: create_backend(params), nodes)


def measure_torch_over(connect: Callable[[], tuple[Any, Any]], nodes: int) -> Round:
    """One round of torch's own handlers.

    Args:
        connect: makes a backend and a store for one node. Operations are reads and writes of the
            state that all share.
        nodes: how many.
    """
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    class CountingBackend:
        def __init__(self, inner: Any) -> None:
            self.number = 0
            self.name = inner.name
            self._inner = inner

        def get_state(self) -> Any:
            self.number += 1
            return self._inner.get_state()

        def set_state(self, state: bytes, token: Any = None) -> Any:
            self.number += 1
            return self._inner.set_state(state, token)

    backends, handlers = [], []
    for _ in range(nodes):
        inner, store = connect()
        backends.append(CountingBackend(inner))
        handlers.append(
            DynamicRendezvousHandler.from_backend(
                "benchmark", store, backends[-1], nodes, nodes, "127.0.0.1"
            )
        )

    def join_of(node: int) -> Callable[[], tuple[int, int]]:
        def join() -> tuple[int, int]:
            info = handlers[node].next_rendezvous()
            return info.rank, info.world_size

        return join

    try:
        seconds, cpu = meet([join_of(node) for node in range(nodes)])
        return Round(nodes, seconds, cpu, [backend.number for backend in backends])
    finally:
        for handler in handlers:
            handler._stop_heartbeats()


def make_room(nodes: int) -> None:
    """Make it possible to be so many nodes at once: open files, small threads, and patience.

    A thread that waits for Python's lock asks for it every switch interval. Thousands that do so
    keep two cores busy with asking alone.
    """
    wanted = nodes * FILES_PER_NODE + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BenchmarkError(f"{nodes} nodes need {wanted} open files; {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    threading.stack_size(STACK)
    sys.setswitchinterval(SWITCH_INTERVAL)


def median(rounds: Sequence[Round]) -> Round:
    return sorted(rounds, key=lambda one: one.seconds)[len(rounds) // 2]


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="c10d", metavar="B", help="or `memory` (c10d)")
    parser.add_argument("--nodes", type=positive, default=1024, metavar="N", help="(1024)")
    parser.add_argument("--peer", choices=["torch"], help="measure torch's own beside it")
    parser.add_argument("--peer-nodes", type=positive, metavar="N", help="(64; 32 over etcd)")
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="rounds (1)")
    parser.add_argument("--endpoint", default="", help="a store that runs already")
    parser.add_argument("--conf", type=pair, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print one JSON object, nothing else; or write it to FILE",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    return parser.parse_args(argv)


def report(
    args: argparse.Namespace,
    rounds: Mapping[int, Round],
    peer: Round | str | None,
    goals: Sequence[Goal],
) -> dict[str, object]:
    small, large = min(rounds), max(rounds)
    result = {
        "backend": args.backend,
        **rounds[args.nodes].as_json(),
        "growth": {
            "from": small,
            "to": large,
            "seconds": round(rounds[large].seconds / rounds[small].seconds, 3),
            "ops_per_node": round(rounds[large].ops_per_node / rounds[small].ops_per_node, 4),
        },
        "rounds": [one.as_json() for one in rounds.values()],
        **goals_as_json(goals),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    if isinstance(peer, str):
        result["peer"] = {"backend": args.peer, "problem": peer}
    elif peer is not None:
        result["peer"] = {"backend": args.peer, **peer.as_json()}
    return result


def print_report(
    args: argparse.Namespace,
    rounds: Mapping[int, Round],
    peer: Round | str | None,
    goals: Sequence[Goal],
) -> None:
    print_platform(args.repeat)
    print(f"backend {args.backend}, all nodes in one process\n")
    print(
        f"{'nodes':>14} {'seconds':>9} {'CPU s':>7} {'ops/node':>9} {'read':>7} "
        f"{'written':>8} {'leader':>7} {'beats':>7}"
    )
    rows = [("plaunch", one) for one in rounds.values()]
    rows += [("torch", peer)] if isinstance(peer, Round) else []
    for name, one in rows:
        print(
            f"{name:8} {one.nodes:5} {one.seconds:9.3f} {one.cpu_seconds:7.2f} "
            f"{one.ops_per_node:9.2f} {one.bytes_read:7.0f} {one.bytes_written:8.0f} "
            f"{one.leader:7} {one.heartbeats:7}"
        )
    if isinstance(peer, str):
        print(f"\ntorch's own was not measured: {peer}")
    elif peer is not None and peer.nodes in rounds:
        ratio = peer.seconds / rounds[peer.nodes].seconds
        print(f"\ntorch : plaunch, {peer.nodes} nodes: {ratio:.1f}")
    print_goals(goals)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    logging.getLogger("plaunch").setLevel(logging.ERROR)
    is_etcd = args.backend in ETCD
    peer_nodes = args.peer_nodes or (PEER_OF_ETCD if is_etcd else SMALL)
    sizes = sorted(
        {SMALL, args.nodes, *(size for size in SIZES if size <= args.nodes)}
        | ({peer_nodes} if args.peer else set())
    )
    peer: Round | str | None = None
    try:
        make_room(max(sizes))
        with contextlib.ExitStack() as stack:
            endpoint = args.endpoint
            if is_etcd and not endpoint:
                endpoint = stack.enter_context(etcd_server()).endpoint
            backend = Backend(args.backend, endpoint, dict(args.conf))
            rounds = {
                size: median([measure(backend, size) for _ in range(args.repeat)]) for size in sizes
            }
        if args.peer:
            try:
                peer = (measure_torch_etcd if is_etcd else measure_torch)(peer_nodes)
            except PeerError as error:
                peer = str(error)
    except (BenchmarkError, PlaunchError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    asked, small, large = rounds[args.nodes], rounds[sizes[0]], rounds[sizes[-1]]
    goals = [
        Goal(
            f"operations per node grow from {small.nodes} to {large.nodes} nodes by",
            large.ops_per_node - small.ops_per_node,
            0,
        ),
        Goal(
            f"percent by which the bytes per node grow from {small.nodes} to {large.nodes} nodes",
            100 * (large.bytes_per_node / small.bytes_per_node - 1),
            GROWTH,
        ),
    ]
    allowed = ALLOWED.get((args.backend, asked.nodes))
    if allowed is not None:
        goals.append(Goal(f"at most {allowed:g} s for {asked.nodes} nodes", asked.seconds, allowed))
    if args.json == "-":
        print(json.dumps(report(args, rounds, peer, goals)))
    else:
        print_report(args, rounds, peer, goals)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(report(args, rounds, peer, goals), file, indent=2)
    return int(args.check and not all(goal.met for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
