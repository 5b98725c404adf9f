"""Creates what a launch needs from parsed options: a `LaunchConfig`, and the workers' command."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import operator
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.agent.worker import check_workers
from plaunch.cli.console import STDERR
from plaunch.cli.file_systems import await_file_system
from plaunch.cli.script import run_script_path
from plaunch.cli.stdin import STDIN, refuse_to_run_path
from plaunch.config import NO_RUN_ID, LaunchConfig, check_nodes, default_run_id
from plaunch.errors import NodeRangeError, UnknownNameError, UsageError
from plaunch.numbers import MOST_WORKERS, digits, quote, whole
from plaunch.parts import ADVICE_ON_OPTIONS, ADVICE_ON_SCRIPT, advise, load_object
from plaunch.plugin.kinds import DEVICE_COUNTS, LOGS_SPECS, RENDEZVOUS
from plaunch.process.logs import Std
from plaunch.process.signals import parse_signals
from plaunch.rendezvous.backend import traits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plaunch.cli.parser import Arguments
    from plaunch.plugin.manager import PluginManager
    from plaunch.process.logs import LogsSpecs

logger = logging.getLogger("plaunch")

# The rendezvous options, by attribute, each with values that are equivalent to its default.
_RENDEZVOUS_OPTIONS: dict[str, tuple[object, ...]] = {
    "rdzv_backend": (),
    "rdzv_endpoint": (),
    "rdzv_id": (),
    "rdzv_conf": (),
    "nnodes": ("1",),
    "node_rank": (0,),
    "master_addr": (),
    "master_port": (),
}


def config_from_args(args: Arguments, manager: PluginManager) -> LaunchConfig:
    """Create the settings from the options.

    Raises:
        UsageError: a value is invalid; the message names the option.
    """
    with _naming("--signals-to-handle"):
        parse_signals(args.signals_to_handle)
    if args.standalone:
        _override_for_standalone(args)
    min_nodes, max_nodes = parse_min_max_nnodes(args.nnodes)
    traits = traits_of(manager.get(RENDEZVOUS, args.rdzv_backend))
    if traits.fill is not None:
        manager.call(RENDEZVOUS, args.rdzv_backend, partial(traits.fill, args))
    nproc = determine_local_world_size(args.nproc_per_node, manager)
    shown = parse_ranks(args.local_ranks_filter)
    advise(ADVICE_ON_OPTIONS, args, traits, [] if shown is None else shown.difference(range(nproc)))
    rdzv_configs: dict[str, object] = dict(parse_rdzv_conf(args.rdzv_conf))
    if traits.has_given_ranks:
        rdzv_configs["rank"] = 0 if args.node_rank is None else args.node_rank
    max_restarts = args.max_restarts
    by_cause: dict[str, float] = {}
    if isinstance(max_restarts, str):
        from plaunch.restarts import parse_budgets  # if there are any

        max_restarts, by_cause = parse_budgets(max_restarts)
    worker_env: dict[str, str] = {}
    if nproc > 1 and "OMP_NUM_THREADS" not in os.environ:
        # As torchrun: one thread each, so that workers do not compete for the cores.
        worker_env["OMP_NUM_THREADS"] = "1"
    # A job of one node needs no agreed id, and a constant one would mix up logs.
    needs_none = traits.is_single_node and max_nodes == 1 and args.rdzv_id == NO_RUN_ID
    run_id = ("" if needs_none else args.rdzv_id) or default_run_id(max_nodes)
    template = args.log_line_prefix_template
    if template is None:
        template = STDERR.line_template(run_id)
    return LaunchConfig(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc_per_node=nproc,
        logs_specs=_logs_specs(args, manager, shown),
        run_id=run_id,
        role=args.role,
        rdzv_endpoint=args.rdzv_endpoint,
        rdzv_backend=args.rdzv_backend,
        rdzv_configs=rdzv_configs,
        max_restarts=max_restarts,
        monitor_interval=args.monitor_interval,
        start_method=args.start_method,
        log_line_prefix_template=template,
        local_addr=args.local_addr,
        event_log_handler=args.event_log_handler,
        signals_to_handle=args.signals_to_handle,
        duplicate_stdout_filters=args.duplicate_stdout_filters,
        duplicate_stderr_filters=args.duplicate_stderr_filters,
        shutdown_timeout=args.shutdown_timeout,
        signal_policy=args.signal_policy,
        restart_policy=args.restart_policy,
        max_restarts_by_cause=by_cause,
        health_checks=list(args.health_check),
        worker_env=worker_env,
        keep_daemons=args.keep_daemons,
        exit_barrier_timeout=args.exit_barrier_timeout,
        node_rank=args.node_rank,
        port_range=args.port_range,
        start_timeout=args.start_timeout,
        job_id=args.job_id,
        options=_plugin_options(args),
        # Options of plugins, which may be blocked.
        virtual_local_rank=getattr(args, "virtual_local_rank", False),
        devices=getattr(args, "devices", None),
        worker_store=getattr(args, "worker_store", "agent"),
    )


def _plugin_options(args: Arguments) -> dict[str, object]:
    """Return the given options of plugins."""
    return {
        option.dest: getattr(args, option.dest)
        for option in args.table
        if args.table.is_plugins(option) and args.is_given(option.dest)
    }


def fill_in(args: Arguments, manager: PluginManager) -> str:
    """Call the plugins that fill in options, such as schedulers, before anything reads `args`.

    Args:
        args: the options, which are changed in place.
        manager: finds the plugins that they name.

    Returns:
        The source of the values, for the user; empty if there are none.

    Raises:
        UsageError: an option of a plugin is invalid.
        PluginError: the plugin failed.
    """
    lines = []
    for option in args.table:
        is_asked = args.is_given(option.dest) or any(n in os.environ for n in option.fill_variables)
        if option.fill and is_asked:
            lines.append(args.table.call(option, option.fill, args, manager))
    return "; ".join(filter(None, lines))


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """Parse `"4"` or `"2:4"`; the name is torchrun's.

    Raises:
        NodeRangeError: the text has another form, or 0 < minimum <= maximum does not hold.
    """
    low, colon, high = nnodes.partition(":")
    try:
        min_nodes = whole(low)
        max_nodes = whole(high) if colon else min_nodes
    except ValueError:
        raise NodeRangeError(
            f"--nnodes is {quote(nnodes)}; write a number, or MIN:MAX as in 2:4"
        ) from None
    check_nodes(min_nodes, max_nodes, f"--nnodes is {nnodes!r}")
    return min_nodes, max_nodes


def determine_local_world_size(nproc_per_node: str, manager: PluginManager) -> int:
    """Return the number of workers of `--nproc-per-node`; a word is a device counter.

    Raises:
        UsageError: the number is below 1, or no plugin offers the word.
    """
    try:
        count = whole(nproc_per_node)
    except ValueError:
        if nproc_per_node.strip("+-").isdecimal():  # with more digits than Python parses
            check_workers(math.inf, f"--nproc-per-node is {quote(nproc_per_node)}")
        return _count_devices(nproc_per_node, manager)
    check_workers(count, f"--nproc-per-node is {count}")
    return count


def _count_devices(name: str, manager: PluginManager) -> int:
    """Return the number of devices of this name.

    Raises:
        UsageError: there are none.
    """
    option = f"{DEVICE_COUNTS.flag}={name}"
    try:
        counter = manager.get(DEVICE_COUNTS, name)
    except UnknownNameError:
        from plaunch.plugin.contributions import find_declaring  # unknown words

        # torchrun takes the name of torch's private-use backend.
        plugin = find_declaring(manager, "UNKNOWN_DEVICES")
        count = None if plugin is None else load_object(plugin.declared("UNKNOWN_DEVICES"))(name)
        if count is None:
            raise
    else:
        with _naming(option):
            count = manager.call(DEVICE_COUNTS, name, lambda: _whole(counter()))
    if count < 1:
        raise UsageError(
            f"{option} found no device on this node; give a number, or another device counter"
        )
    return count


def _whole(answer: object) -> int:
    if not isinstance(answer, bool):
        with contextlib.suppress(TypeError):
            return operator.index(answer)  # type: ignore[arg-type]
    raise TypeError(f"it returned {answer!r}, which is not a whole number")


def parse_rdzv_conf(text: str) -> dict[str, str]:
    """Parse `"key=value,key=value"`; spaces around keys and values are removed.

    Quotes around the whole text are removed, too: programs that run torchrun without a shell often
    pass them.

    Raises:
        UsageError: a part has no `=`, or no key, or no value, or a key is given twice.
    """
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    options: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise UsageError(f"--rdzv-conf has {part!r} in {text!r}; write key=value,key=value")
        if key in options:
            raise UsageError(f"--rdzv-conf gives {key!r} twice in {text!r}")
        options[key] = value
    return options


def parse_ranks(text: str) -> set[int] | None:
    """Parse local ranks and ranges such as `"0,8-15"`; None, for all, if the text is empty.

    Raises:
        UsageError: a part is neither a number nor a range.
    """
    ranks: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        low = digits(first, MOST_WORKERS)
        high = digits(last, MOST_WORKERS) if dash else low
        if low is None or high is None or low > high:
            raise UsageError(
                f"--local-ranks-filter has {quote(part)} in {quote(text)}; write local ranks and "
                "ranges, as in 0,8-15"
            )
        ranks.update(range(low, high + 1))
    return ranks or None


@contextlib.contextmanager
def _naming(option: str) -> Iterator[None]:
    """Prefix usage errors with the option."""
    try:
        yield
    except UsageError as error:
        error.args = (f"{option}: {error}",)
        raise


def _streams(option: str, text: str) -> Std | dict[int, Std]:
    with _naming(option):
        return Std.from_str(text)


def _logs_specs(args: Arguments, manager: PluginManager, shown: set[int] | None) -> LogsSpecs:
    redirects = _streams("--redirects", args.redirects)
    tee = _streams("--tee", args.tee)
    specs: LogsSpecs = manager.make(
        LOGS_SPECS,
        args.logs_specs,
        log_dir=args.log_dir,
        redirects=redirects,
        tee=tee,
        local_ranks_filter=shown,
    )
    return specs


def _override_for_standalone(args: Arguments) -> None:
    overridden = []
    for dest, equivalents in _RENDEZVOUS_OPTIONS.items():
        option = args.table.find(dest)
        if option is not None and getattr(args, dest) not in (option.default, *equivalents):
            overridden.append(option.names[-1])
            setattr(args, dest, option.default)
    if overridden:
        logger.warning("--standalone overrides %s", ", ".join(overridden))


# --- the workers' command -------------------------------------------------------------------------


def worker_command(args: Arguments) -> tuple[Callable[..., Any] | str, list[str]]:
    """Return the entrypoint and its arguments.

    Scripts and modules run under `PYTHON_EXEC`, or this interpreter, with `-u`, as in torchrun.

    Raises:
        UsageError: there is no script, it does not exist, or options contradict each other.
    """
    script: str | None = args.training_script
    rest: list[str] = args.training_script_args
    if script is None:
        advice = advise(ADVICE_ON_SCRIPT, args)
        raise UsageError(
            f"there is no script to run{advice}; write plaunch [options] script [arguments]"
        )
    if not script.strip():
        raise UsageError(
            f"the name of the script is empty ({script!r}); perhaps a variable is not set"
        )
    if args.no_python and args.module:
        raise UsageError(
            f"--no-python and --module contradict each other for {script!r}: a module needs "
            "python; leave one out"
        )
    if args.run_path and args.module:
        raise UsageError(
            f"--run-path and --module contradict each other for {script!r}: leave one out"
        )
    if args.run_path:
        refuse_to_run_path(script)
        _check_file(script, args)
        return run_script_path, [script, *rest]
    if args.no_python:
        _check_program(script)
        return script, rest
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    if "PYTHON_EXEC" in os.environ:
        _check_program(python, "variable PYTHON_EXEC names")
    if args.module:
        return python, ["-u", "-m", script, *rest]
    if script != STDIN:
        _check_file(script, args)
    return python, ["-u", script, *rest]


def _check_file(script: str, args: Arguments) -> None:
    await_file_system(f"the script {script!r}", lambda: _check_script(script, args))


def _check_script(script: str, args: Arguments) -> None:
    try:
        os.stat(script)
    except (FileNotFoundError, NotADirectoryError):
        advice = advise(ADVICE_ON_SCRIPT, args)
        raise UsageError(f"the script {script!r} does not exist{advice}") from None
    except OSError as error:
        advice = "; check the permissions of its folders" if error.errno == errno.EACCES else ""
        raise UsageError(
            f"the script {script!r} cannot be read: {error.strerror}{advice}"
        ) from error
    if not os.access(script, os.R_OK):
        raise UsageError(
            f"the script {script!r} cannot be read by this user; check its permissions (ls -l)"
        )
    # A folder or a zip file with a __main__.py is a script to python, too.
    if os.path.isdir(script) and not os.path.isfile(os.path.join(script, "__main__.py")):
        raise UsageError(
            f"the script {script!r} is a folder without a __main__.py; give the path of a file in "
            "it, or -m for a package"
        )


def _check_program(program: str, who: str = "--no-python runs") -> None:
    await_file_system(f"the program {program!r}", lambda: _find_program(program, who))


def _find_program(program: str, who: str) -> None:
    import shutil  # programs only

    if shutil.which(program) is not None:
        return
    why = "which is not an executable file and is not found on PATH"
    if os.path.isfile(program):
        why = f"a file that may not be executed; chmod +x {program}"
        if os.access(program, os.X_OK):
            why = (
                f"which is not found on PATH; for the file in the current folder write ./{program}"
            )
    raise UsageError(f"{who} {program!r}, {why}")
