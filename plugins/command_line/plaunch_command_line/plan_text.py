"""The plan of a launch as text."""

from __future__ import annotations

import shlex
from typing import Any

OPEN = "<decided when the nodes meet>"
# The keys that every worker has; the others describe its binding and its starter.
_ALWAYS = ("local_rank", "rank", "command", "environment", "logs")


def format_plan(plan: dict[str, Any]) -> str:
    """Format the plan as text."""
    job, python = plan["job"], plan["python"]
    nodes = (
        f"{job['min_nodes']} to {job['max_nodes']} nodes"
        if job["min_nodes"] != job["max_nodes"]
        else _count(job["max_nodes"], "node")
    )
    at = f" at {job['endpoint']}" if job["endpoint"] else ""
    lines = [
        f"plaunch {plan['plaunch']} (Python {python['version']}, {python['path']})",
        f"job {job['run_id']!r}: {nodes}, {_count(job['workers_on_this_node'], 'worker')} on this "
        f"one, rendezvous backend {job['backend']!r}{at}",
        "",
        "settings",
        *_table(
            [
                (f"--{name.replace('_', '-')}", _written(setting["value"]), setting["source"])
                for name, setting in plan["settings"].items()
            ]
        ),
        "",
        "plugins",
        *_table(
            [
                (item["kind"], item["name"], f"{item['distribution'] or '-'} {item['version']}")
                for item in plan["plugins"]
            ]
        ),
    ]
    common = _common(plan["workers"])
    lines += ["", "environment of all workers", *_variables(common)]
    for worker in plan["workers"]:
        rank = OPEN if worker["rank"] is None else worker["rank"]
        own = {k: v for k, v in worker["environment"].items() if k not in common}
        lines += [
            "",
            f"worker of local rank {worker['local_rank']}, rank {rank}",
            f"  {shlex.join(worker['command'])}",
            *(f"  {name}: {value}" for name, value in worker["logs"].items()),
            *(f"  {name}: {value}" for name, value in worker.items() if name not in _ALWAYS),
            *_variables(own),
        ]
    return "\n".join(lines) + "\n"


def _common(workers: list[dict[str, Any]]) -> dict[str, str]:
    """The variables with the same value for all workers."""
    first = workers[0]["environment"]
    return {
        name: value
        for name, value in first.items()
        if all(worker["environment"].get(name) == value for worker in workers)
    }


def _variables(env: dict[str, str]) -> list[str]:
    return [f"  {name}={value}" for name, value in env.items()]


def _written(value: object) -> str:
    if value is None:
        return "-"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return ["  none"]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
