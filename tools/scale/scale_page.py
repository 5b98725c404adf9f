"""The tables of docs/scale.md, which are made from the figures of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaunch_rendezvous_c10d.options import job_store_interval

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs/scale.md"
_FIGURES = Path(__file__).with_name("figures.json")
_TABLE = 256 << 20  # bytes, the limit of the store's table
Figures = dict[str, Any]


def read_figures() -> Figures:
    """Return the figures of the last run; none if there was none."""
    return json.loads(_FIGURES.read_text(encoding="utf-8")) if _FIGURES.exists() else {}


def keep_figures(figures: Figures) -> None:
    """Write the file that the tables are made from."""
    text = json.dumps(figures, indent=1)
    _FIGURES.write_text(f"{text}\n", encoding="utf-8")


def write_figures(figures: Figures) -> None:
    """Keep figures, and write the tables of the page."""
    keep_figures(figures)
    PAGE.write_text(fill_in(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")


def fill_in(page: str, figures: Figures) -> str:
    """Return the page with the tables of these figures."""
    for name, table in TABLES.items():
        begin, end = f"<!-- figures: {name} -->\n", "<!-- end of figures -->"
        before, found, rest = page.partition(begin)
        if not found:
            raise ValueError(f"{PAGE} has no place for the table {name!r}")
        page = f"{before}{begin}{table(figures)}{end}{rest.partition(end)[2]}"
    return page


def machine_table(figures: Figures) -> str:
    """Return where the figures come from."""
    return _table(["", ""], [[name, value] for name, value in figures["machine"].items()])


def costs_table(figures: Figures) -> str:
    """Return what the server and a client cost."""
    costs = figures["costs"]
    rows = [
        ["the server, for a greeting", _micro(costs["greeting"])],
        ["the server, for a request without operations", _micro(costs["request"])],
        ["the server, for each operation of a large request", _micro(costs["operation"])],
        ["the server, for a request that writes, beside that", _micro(costs["write"])],
        ["the server, for a wait that begins", _micro(costs["wait"])],
        ["the server, for each of 1,024 clients that a write wakes", _micro(costs["wake"])],
        ["the server, for a connection that ends", _micro(costs["end"])],
        ["the server, for each KiB", _micro(costs["byte"] * 1024)],
        ["a client, for its greeting", _micro(costs["client_greeting"])],
        ["a client, for a request", _micro(costs["client_request"])],
        ["the start of a server's process, until it answers", _milli(costs["start"])],
        ["memory of the server for a node", f"{costs['connection_bytes'] / 1024:.1f} KiB"],
        ["memory of the server without nodes", f"{costs['server_bytes'] / (1 << 20):.0f} MiB"],
    ]
    rows += [
        [f"a wake of {int(waiters):,} clients, the server's CPU time", _milli(int(waiters) * each)]
        for waiters, each in figures["wakes"].items()
    ]
    return _table(["what", "costs"], rows)


def validation_table(figures: Figures) -> str:
    """Return real jobs beside those of the model."""
    rows = []
    for real, modelled in zip(figures["real"], figures["modelled"], strict=True):
        for name, run in (("really", real), ("in the model", modelled)):
            rows.append(
                [
                    f"{run['nodes']:,}",
                    name,
                    f"{run['requests']:.2f}",
                    f"{run['bytes'] / 1024:.2f} KiB",
                    _seconds(run["server_cpu"]),
                    _seconds(run["nodes_cpu"]),
                    _seconds(run["seconds"]),
                ]
            )
    head = ["nodes", "", "requests", "bytes", "server's CPU time", "nodes' CPU time", "seconds"]
    return _table(head, rows)


def jobs_table(figures: Figures) -> str:
    """Return what happens to jobs of the model."""
    jobs = figures["jobs"]
    head = ["nodes", *(f"{job['nodes']:,}" for job in jobs)]
    lines: list[tuple[str, str, Callable[[Any], str]]] = [
        ("**first round**: seconds", "form", _seconds),
        ("the server's CPU time", "form_cpu", _seconds),
        ("the leader's CPU time", "form_leader", _seconds),
        ("requests of a node", "requests", "{:.2f}".format),
        ("bytes of a node", "bytes", lambda value: f"{value / 1024:.2f} KiB"),
        ("longest wait for the server", "queue", _seconds),
        ("most connections in the backlog", "backlog", "{:,}".format),
        ("connections that came again", "repeated", "{:,}".format),
        ("**a worker fails**: the last node knows", "failure", _seconds),
        ("all nodes are in the next round", "failure_round", _seconds),
        ("**an agent is killed**: the last node knows", "killed", _seconds),
        ("the others are in the next round", "killed_round", _seconds),
        ("**the store's process is killed**: all are in a round again", "store", _seconds),
        ("**workers run**: share of a core for heartbeats", "beats", "{:.1%}".format),
        ("requests per second", "beat_requests", "{:,.0f}".format),
        ("longest wait of a heartbeat", "beat_queue", _seconds),
        ("**memory**: share of the table's limit", "store_bytes", lambda n: f"{n / _TABLE:.1%}"),
    ]
    rows = [
        [text, *(form(job[name]) if name in job else "not run" for job in jobs)]
        for text, name, form in lines
    ]
    return _table(head, rows)


def bends_table(figures: Figures) -> str:
    """Return which resource ends where."""
    costs, jobs = figures["costs"], figures["jobs"]
    last = [job for job in jobs if "store_bytes" in job][-1]
    beat = last["beats"] / last["beat_requests"]  # seconds of the server for a request
    meeting = last["form_cpu"] / last["nodes"]
    leading = last["form_leader"] / last["nodes"]
    full = int(0.5 * 5.0 / (2 * beat))
    many = 1_000_000
    often = many / job_store_interval(many)  # heartbeats a second, by default
    table = int(_TABLE / (last["store_bytes"] / last["nodes"]))
    rows = [
        [
            "the server's core",
            f"{_micro(meeting)} for each node that joins a first round; {_micro(2 * beat)} for its "
            "heartbeat and check",
            f"{1 / meeting:,.0f} nodes can join per second. Heartbeats of {full:,} nodes take half "
            f"of the core with an interval of 5 s; with the default one, {often * 2 * beat:.0%} "
            "of it at most",
        ],
        [
            "the leader's core",
            f"{_micro(leading)} for each node of a first round",
            f"{1 / leading:,.0f} nodes take a second, while the server still serves them",
        ],
        [
            "the listen backlog",
            "4,096 connections, or `net.core.somaxconn` if that is less",
            "with more nodes at the same moment, the kernel of the others repeats the connection "
            "after a second (*connections that came again*)",
        ],
        [
            "open files of the server",
            "one for each node, and 16",
            "the hard limit of `RLIMIT_NOFILE` (`ulimit -Hn`), which the server uses by itself; "
            "further nodes are refused with a message that names the limit",
        ],
        [
            "memory of the server",
            f"{costs['connection_bytes'] / 1024:.1f} KiB for each connection, "
            f"{last['store_bytes'] / last['nodes'] / 1024:.1f} KiB counted for its keys",
            f"`MAX_BYTES` is full with {table:,} nodes",
        ],
        [
            "tickets of a log",
            "one for each node that joins a round",
            "65,536 of a round, or four for each node of the largest number if that is more",
        ],
        [
            "threads and ports",
            "three threads of an agent beside its loop, four of the leader's, one of the server; a "
            "port of each node's own host, one of the server",
            "they do not grow with the number of nodes; thousands of nodes on *one* host need "
            "`kernel.pid_max` and `net.ipv4.ip_local_port_range`",
        ],
    ]
    return _table(["resource", "what a node takes", "where it ends"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _milli(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 0.1 else f"{seconds:.2f} s"


TABLES = {
    "machine": machine_table,
    "costs": costs_table,
    "validation": validation_table,
    "jobs": jobs_table,
    "bends": bends_table,
}
