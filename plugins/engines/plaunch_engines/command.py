"""The command `plaunch --on=ENGINE[:WHERE]`."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Any

from plaunch.cli import (
    STDERR,
    parse_min_max_nnodes,
    parse_rdzv_conf,
    read_script,
    reads_stdin,
)
from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch.plugin import ENGINES
from plaunch.rendezvous import RendezvousParameters
from plaunch.restarts import Cause, ends_with_lost_node, format_budgets, parse_budgets
from plaunch_membership import read_token

from plaunch_engines.driver import STOPS, JobDriver, handled
from plaunch_engines.node_command import begin_path, check_setup, read_hosts, read_pythons
from plaunch_engines.node_files import NodeFiles, folder_of
from plaunch_engines.output import MergedOutput
from plaunch_engines.plan import (
    JobPlan,
    OfferedStore,
    refuse_agents_options,
    refuse_options_of_others,
    script_of,
)
from plaunch_engines.records import describe_script
from plaunch_engines.store_host import is_own_numeric
from plaunch_engines.variables import passed_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.cli import Arguments, Invocation
    from plaunch.engines import BatchEngine, Engine
    from plaunch.plugin import PluginManager

logger = logging.getLogger("plaunch")

_ELASTIC = "c10d"
_STATIC = "static"
# Options that have an effect if this command starts the agents, and those that engines implement.
_OF_DRIVER = {
    *("local_addr", "node_output", "node_python", "node_setup", "pass_env", "start_limit"),
    "store_host",
}
_OF_ENGINES = {"exclude", "pass_secret", "silence_limit"}


def run_on_nodes(invocation: Invocation) -> int:
    """Start one agent on each node, and follow the job to its end; returns its exit code.

    Raises:
        PlaunchError: the job cannot be started, or has lost too many nodes.
    """
    args = invocation.parsed()
    refuse_agents_options(args)
    name, _, where = args.on.partition(":")
    manager = invocation.create_manager()
    manager.check_name(ENGINES, name)
    refuse_options_of_others(args, name, manager.names(ENGINES))
    own = {option.dest: value for option, value in manager.own_options(ENGINES, name, vars(args))}
    request = _request(args, where, own)
    engine = manager.make(ENGINES, name, request)
    # Those of plaunch's engines are nothing for agents, whichever engine is used.
    declared = manager.plugin_options(__name__.partition(".")[0])
    others = {*own, *(option.dest for plugin in declared for option in plugin.options)}
    others.add("local_addr")  # of this machine
    if not hasattr(engine, "launch"):
        others.add("rdzv_conf")  # to which the command adds, as the last one counts
    try:
        has_own_files = getattr(engine, "has_own_files", False)
        if not args.training_script or not (has_own_files or _is_program_of_nodes(args)):
            invocation.command()  # a usage error before anything is started
        words = [w for dest, given in args.option_words if dest not in others for w in given]
        program = [str(args.training_script), *args.training_script_args]
        _refuse_unused_options(args, engine)
        if hasattr(engine, "launch"):
            if reads_stdin(args):
                raise UsageError(
                    f"--on={args.on} cannot pass a script from stdin ('-') on to the nodes; save "
                    "it as a file"
                )
            if getattr(engine, "can_replace", False):
                words += awaiting_others(args, request.min_nodes or 1, request.max_nodes or 1)
            return _launch(
                engine, [*words, "--", *program], lambda line: invocation.write(f"{line}\n")
            )
        plan = _plan(args, engine, request, words, manager)
        return _drive(engine, plan, invocation.stream.fileno())
    finally:
        engine.close()


def _launch(engine: BatchEngine, arguments: list[str], show: Callable[[str], None]) -> int:
    """Let a batch engine launch the job; stop signals raise KeyboardInterrupt in it."""
    received: list[int] = []

    def interrupt(signum: int, frame: object) -> None:
        received.append(signum)
        raise KeyboardInterrupt

    previous = {each: signal.signal(each, interrupt) for each in handled(STOPS)}
    try:
        return engine.launch(arguments, show)
    except KeyboardInterrupt:
        if not received:
            raise
        return 128 + received[0]
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _is_program_of_nodes(args: Arguments) -> bool:
    """Whether the program is beside this Python, whose folder is in the PATH of workers."""
    path = begin_path(os.environ.get("PATH", ""), sys.executable)
    return bool(args.no_python) and bool(shutil.which(str(args.training_script), path=path))


def _refuse_unused_options(args: Arguments, engine: Engine | BatchEngine) -> None:
    """Refuse options that the engine does not use.

    Raises:
        UsageError: one is given.
    """
    used = {*getattr(engine, "used_options", ())}
    if not hasattr(engine, "launch"):
        used |= _OF_DRIVER
    for dest in sorted(_OF_DRIVER | _OF_ENGINES):
        if args.is_given(dest) and dest not in used:
            name = dest.replace("_", "-")
            raise UsageError(f"--{name} has no effect with --on={args.on}; leave it out")
    if "pythons" not in used and read_pythons(args.node_python)[1]:
        raise UsageError(
            f"--node-python={args.node_python[-1]}: --on={args.on} has no Python of single hosts; "
            "write --node-python=PATH"
        )


def _request(args: Arguments, where: str, own: dict[str, Any]) -> EngineRequest:
    low = high = None
    if args.is_given("nnodes"):
        low, high = parse_min_max_nnodes(args.nnodes)
    if args.spares < 0:
        raise UsageError(f"--spares is {args.spares}; write a number from 0")
    return EngineRequest(
        where=where,
        min_nodes=low,
        max_nodes=high,
        spares=args.spares,
        exclude=[h for text in args.exclude for h in read_hosts(text, "--exclude")],
        pythons=read_pythons(args.node_python)[1],
        silence_limit=args.silence_limit,
        folder=os.getcwd(),
        options=own,
        job=f"plaunch-{uuid.uuid4().hex[:8]}",
    )


def _plan(
    args: Arguments,
    engine: Engine,
    request: EngineRequest,
    words: list[str],
    manager: PluginManager,
) -> JobPlan:
    """Complete what the user has not given.

    Raises:
        UsageError: the number of nodes is not known, or the engine has too few.
    """
    nodes = engine.nodes
    if request.max_nodes is None:
        if nodes is None:
            raise UsageError(f"--on={args.on} needs a number of nodes (--nnodes)")
        low = high = nodes - request.spares
        if high < 1:
            raise UsageError(
                f"--spares={request.spares} leaves none of {nodes} nodes (--on={args.on}) for the "
                "job; name more nodes, or fewer spares"
            )
        words = [f"--nnodes={high}", *words]
    else:
        low, high = request.min_nodes or 1, request.max_nodes
    count = high + request.spares
    if nodes is not None and nodes < count:
        if nodes < low + request.spares:
            raise UsageError(
                f"--on={args.on} has {nodes} nodes, and the job needs at least "
                f"{low + request.spares} (--nnodes, --spares); add nodes, or require fewer"
            )
        count = nodes
    backend = args.rdzv_backend if args.is_given("rdzv_backend") else _ELASTIC
    if backend == _STATIC and request.spares:
        raise UsageError(
            f"--spares={request.spares}: nodes of the rendezvous backend 'static' cannot be "
            "replaced; leave --rdzv-backend or --spares out"
        )
    # This command knows whether another node can take the place of a lost one, not the agents.
    words = [*words, *awaiting_others(args, low, high)]
    if not args.is_given("rdzv_backend"):
        words = [f"--rdzv-backend={backend}", *words]
    if not args.is_given("rdzv_id"):
        words = [f"--rdzv-id={request.job}", *words]
    job = str(args.rdzv_id or request.job) if args.is_given("rdzv_id") else request.job
    script = script_of(args)
    env = passed_environment(
        os.environ,
        args.pass_env,
        has_token=backend != _STATIC,  # which signs nothing, and refuses a token
    )
    return JobPlan(
        job=job,
        engine=args.on.partition(":")[0],
        count=count,
        min_nodes=low,
        max_nodes=high,
        options=words,
        program=[str(args.training_script), *args.training_script_args],
        script=script,
        script_content=describe_script(request.folder, script),
        folder=request.folder,
        python=read_pythons(args.node_python)[0] or sys.executable,
        setup=check_setup(args.node_setup),
        output_folder=folder_of(args.node_output, job) if args.node_output else "",
        env=env,
        rdzv_conf=args.rdzv_conf or "",
        endpoint=args.rdzv_endpoint if args.is_given("rdzv_endpoint") else "",
        is_static=backend == _STATIC,
        start_timeout=args.start_limit,
        silence_limit=(
            request.silence_limit
            if "silence_limit" in getattr(engine, "used_options", ())
            else math.inf
        ),
        shutdown_timeout=(
            SHUTDOWN_TIMEOUT if args.shutdown_timeout is None else args.shutdown_timeout
        ),
        store=_store_request(args, backend, job, env),
        stdin=read_script(args, logger),
    )


def awaiting_others(args: Arguments, min_nodes: int, max_nodes: int) -> list[str]:
    """Return the option that lets agents wait for a node in the place of a lost one, if needed."""
    total: Any = args.max_restarts
    by_cause: dict[str, float] = {}
    if isinstance(total, str):
        total, by_cause = parse_budgets(total)
    if not ends_with_lost_node(total, by_cause, min_nodes, max_nodes):
        return []
    return [f"--max-restarts={format_budgets(total, {**by_cause, Cause.NODE.value: math.inf})}"]


def _store_request(
    args: Arguments, backend: str, job: str, env: Mapping[str, str]
) -> OfferedStore | None:
    """Return the store that this command may host; None if it must not.

    Raises:
        UsageError: it must, or has an address for it, but the job does not use such a store; or an
            option names the host.
    """
    conf: dict[str, Any] = dict(parse_rdzv_conf(args.rdzv_conf or ""))
    if "is_host" in conf and not args.is_given("rdzv_endpoint") and backend != _STATIC:
        raise UsageError("--rdzv-conf: is_host is set for each agent by --on; see --store-host")
    why = ""
    if args.is_given("rdzv_endpoint"):
        why = f"with --rdzv-endpoint={args.rdzv_endpoint}, which names the host of the store"
    elif backend != _ELASTIC:
        why = f"with the rendezvous backend {backend!r}"
    elif conf.get("store_type", "tcp") != "tcp" or conf.get("store", "job") != "job":
        why = "with a store of torch (--rdzv-conf)"
    elif args.store_host == "node":
        why = "with --store-host=node"
    if why:
        for dest in ("store_host", "local_addr"):
            if args.is_given(dest) and getattr(args, dest) not in ("auto", "node"):
                name = dest.replace("_", "-")
                raise UsageError(f"--{name} has no effect {why}; leave one of them out")
        return None
    if args.local_addr and not is_own_numeric(args.local_addr):
        raise UsageError(
            f"--local-addr={args.local_addr} is not a numeric address of this machine; with --on, "
            "it is the address at which the nodes reach the rendezvous store of this command"
        )
    token, problem = b"", ""
    try:
        token = read_token(RendezvousParameters(backend, "", job, 1, 1, **conf), env) or b""
    except UsageError as error:
        problem = str(error)  # the nodes may have the file
    return OfferedStore(
        token=token,
        run_id=job,
        address=args.local_addr or "",
        port_range=args.port_range,
        is_required=args.store_host == "command",
        problem=problem,
    )


def _drive(engine: Engine, plan: JobPlan, stdout: int) -> int:
    output = MergedOutput(
        STDERR.format,
        has_status=STDERR.can_show() and not STDERR.is_json,
        is_json=STDERR.is_json,
        stdout=stdout,
    )
    files = NodeFiles(plan.output_folder, output) if plan.output_folder else None
    return JobDriver(engine, plan, output, files=files).run()
