"""The plan of a launch: settings and their sources, commands, environment, logs, plugins.

Creating it starts no process and opens no socket. Values that the rendezvous decides are left open.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from plaunch import __version__
from plaunch.agent import Worker, WorkerGroup, WorkerInfo, WorkerSpec, macros, worker_environment
from plaunch.cli import reads_stdin
from plaunch.plugin import RENDEZVOUS, find_worker_env
from plaunch.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo, traits_of
from plaunch_network import parse_rendezvous_endpoint

from plaunch_command_line.command_check import check_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch import LaunchConfig
    from plaunch.cli import Invocation, LaunchComponents
    from plaunch.plugin import PluginManager
    from plaunch.process import LogsSpecs

VERSION = 1  # of the JSON format
FREE_PORT = "<a free port>"
LOOP_BACK = "127.0.0.1"
_STDIN = "the script, from the stdin of the launcher"  # which a plan leaves to the launch
OPEN = "<decided when the nodes meet>"
# The keys that every worker has; the others describe its binding and its starter.
_ALWAYS = ("local_rank", "rank", "command", "environment", "logs")
# Variables of workers whose values the rendezvous decides.
_DECIDED_LATER = (
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
)


class _NoRendezvous(RendezvousHandler):
    """Replaces the handler of a launch, without contacting other nodes."""

    def __init__(self, backend: str, run_id: str) -> None:
        self._backend = backend
        self._run_id = run_id

    def get_backend(self) -> str:
        return self._backend

    def next_rendezvous(self) -> RendezvousInfo:
        raise NotImplementedError("a plan does not contact other nodes")

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: there are no other nodes."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def show_plan(invocation: Invocation) -> int:
    """Print what the launch would do, also if the workers' command would fail at once.

    Raises:
        PlaunchError: the launch would not start.
    """
    plan = make_plan(invocation)
    is_json = invocation.options["dry_run"] == "json"
    text = json.dumps(plan, indent=2) + "\n" if is_json else format_plan(plan)
    # Arguments and variables may contain bytes that cannot be decoded.
    encoding = invocation.stream.encoding or "utf-8"
    invocation.write(text.encode(encoding, "backslashreplace").decode(encoding))
    entrypoint, _ = invocation.command()
    check_command(invocation.parsed(), entrypoint, plan["workers"][0]["environment"])
    return 0


def make_plan(invocation: Invocation) -> dict[str, Any]:
    """The plan of the launch, as values for JSON.

    Raises:
        PlaunchError: the launch would not start.
    """
    args = invocation.parsed()
    entrypoint, entrypoint_args = invocation.command()
    manager = invocation.create_manager()
    config, _ = invocation.configure(manager)
    with manager.naming_plugins():
        components = invocation.prepare(manager, config)
        selected = manager.selected()
        workers = _workers(config, entrypoint, entrypoint_args, manager, components)
        if reads_stdin(args):
            workers = [{**worker, "stdin": _STDIN} for worker in workers]
    return {
        "version": VERSION,
        "plaunch": __version__,
        "python": {"version": ".".join(map(str, sys.version_info[:3])), "path": sys.executable},
        "settings": {
            option.dest: {
                "value": _resolved(option.dest, invocation.options, config),
                "source": args.sources[option.dest],
            }
            for option in invocation.table
            if option.has_variable
        },
        "job": {
            "run_id": config.run_id,
            "min_nodes": config.min_nodes,
            "max_nodes": config.max_nodes,
            "workers_on_this_node": config.nproc_per_node,
            "backend": config.rdzv_backend,
            "endpoint": config.rdzv_endpoint,
            "options": {key: _plain(value) for key, value in config.rdzv_configs.items()},
        },
        "plugins": [
            {
                "kind": plugin.kind,
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "module": plugin.module,
            }
            for plugin in selected
        ],
        "workers": workers,
    }


def _resolved(dest: str, options: Mapping[str, Any], config: LaunchConfig) -> Any:
    """The value of an option; for a component, its name."""
    if dest == "rdzv_id":
        return config.run_id
    if dest == "job_id":
        return config.job_id or config.run_id
    if dest in ("nproc_per_node", "rdzv_endpoint", "shutdown_timeout", "node_rank"):
        return _plain(getattr(config, dest))
    return _plain(options[dest])


def _plain(value: object) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # not valid in JSON
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _workers(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str,
    entrypoint_args: list[str],
    manager: PluginManager,
    components: LaunchComponents,
) -> list[dict[str, Any]]:
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        rdzv_handler=_NoRendezvous(config.rdzv_backend, config.run_id),
        entrypoint=entrypoint,
        args=tuple(entrypoint_args),
        max_restarts=config.max_restarts,
        worker_store=components.worker_store,
        job_id=config.job_id,
    )
    group = WorkerGroup(spec)
    traits = traits_of(manager.get(RENDEZVOUS, config.rdzv_backend))
    is_known = _place(group, config, is_given=traits.has_given_ranks)
    binder, starter = components.binder, components.starter
    bindings = {} if binder is None else binder.plan(spec.local_world_size)
    found: list[dict[str, Any]] = []
    for worker in group.workers:
        env = worker_environment(
            group, worker, attempt=0, round=0, environ=os.environ, binder=binder
        )
        env.update(config.worker_variables())
        if is_known:
            # Hooks may need ranks, so they are only called if these are known.
            env.update(find_worker_env(manager, _described(worker), env))
        else:
            env.update(dict.fromkeys(_DECIDED_LATER, OPEN))
        files = _logs(components.logs_specs, config.run_id, worker)
        if "error_file" in files:
            env["TORCHELASTIC_ERROR_FILE"] = files["error_file"]
        args = macros.substitute(list(spec.args), str(worker.local_rank))
        found.append(
            {
                "local_rank": worker.local_rank,
                "rank": worker.global_rank if is_known else None,
                "command": [_name_of(entrypoint), *args],
                "environment": dict(sorted(env.items())),
                "logs": files,
                **(bindings[worker.local_rank].describe() if worker.local_rank in bindings else {}),
                **({} if starter is None else {"started by": str(starter)}),
            }
        )
    return found


def _name_of(entrypoint: Callable[..., Any] | str) -> str:
    if isinstance(entrypoint, str):
        return entrypoint
    return f"{entrypoint.__module__}.{entrypoint.__qualname__}"


def _place(group: WorkerGroup, config: LaunchConfig, *, is_given: bool) -> bool:
    """Set ranks and address of the group; False if the rendezvous will decide them."""
    spec = group.spec
    if not is_given:
        group.master_addr, group.master_port = OPEN, OPEN  # type: ignore[assignment]
        return False
    rank = int(str(config.rdzv_configs.get("rank", 0)))
    host, port = "", -1
    if config.rdzv_endpoint:
        host, port = parse_rendezvous_endpoint(config.rdzv_endpoint, default_port=-1)
    address = host or config.local_addr or LOOP_BACK
    store = RendezvousStoreInfo(address, port if port >= 0 else FREE_PORT)  # type: ignore[arg-type]
    group.enter_round(RendezvousInfo(None, rank, config.max_nodes, store), None)
    here = spec.local_world_size
    world = here * config.max_nodes
    group.workers = [Worker(i, rank * here + i, rank * here + i, world, world) for i in range(here)]
    return True


def _described(worker: Worker) -> WorkerInfo:
    return WorkerInfo(
        worker.local_rank,
        worker.global_rank,
        worker.role_rank,
        worker.world_size,
        worker.role_world_size,
    )


def _logs(specs: LogsSpecs, run_id: str, worker: Worker) -> dict[str, str]:
    """Describe where a worker's streams go; folders are created when workers start."""
    files = specs.planned(run_id, worker.local_rank)
    return {"decided_by": type(specs).__name__} if files is None else files


# --- text ---------------------------------------------------------------------------------------


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
