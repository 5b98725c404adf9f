"""The commands of `plaunchctl`: each sends requests to launches, and prints the answers."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial

from plaunch.lazy import TYPE_CHECKING
from plaunch.numbers import name_ranks
from plaunch.texts import printable

from plaunch_control.client import ClientError, GoneError, PendingRequest, SilentError, ask

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from plaunch_control.launches import Launch

_LONG_POLL = 2.0  # seconds that a request for events, or for the end, waits in the launch
_PATIENCE = 5.0  # seconds for the answer of `wait` to such a request


def ps(launches: list[Launch], options: argparse.Namespace) -> int:
    """List all launches, including those that do not answer."""
    describe = partial(_row_of, patience=options.timeout)
    rows = [row for row in _map_parallel(launches, describe) if row is not None]
    if options.json:
        _print_json(rows)
    elif rows:
        _print_table(rows)
    else:
        print("no launch of this user was found on this host")
    return 0


def _row_of(launch: Launch, patience: float) -> dict[str, Any] | None:
    row: dict[str, Any] = {"run_id": launch.run_id, "pid": launch.pid}
    try:
        status = ask(launch.path, "/v1/status", patience=patience)
    except GoneError:
        from plaunch_control.folder import remove_stale  # rarely needed

        remove_stale(launch.path)
        return None
    except ClientError as error:
        state = "no answer" if isinstance(error, SilentError) else "unknown"
        return {**row, "state": state, "error": str(error)}
    return {
        "run_id": status.get("run_id"),
        "pid": launch.pid,
        "state": status.get("phase") if status.get("alive") else "stuck",
        "round": status.get("round"),
        "attempt": status.get("attempt"),
        "ranks": status.get("ranks"),
        "since": status.get("started"),
        "command": status.get("command"),
    }


def _map_parallel(launches: list[Launch], function: Callable[[Launch], Any]) -> list[Any]:
    """Call a function for all launches in parallel: each that does not answer takes long."""
    if len(launches) < 2:
        return [function(launch) for launch in launches]
    import threading  # several launches

    found: list[Any] = [None] * len(launches)

    def fill(number: int) -> None:
        found[number] = function(launches[number])

    threads = [threading.Thread(target=fill, args=(n,)) for n in range(len(launches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def status(launch: Launch, options: argparse.Namespace) -> int:
    """Show the state of one launch, and of the other nodes of its job."""
    data = ask(launch.path, _page("/v1/status", nodes=1), patience=options.timeout)
    if options.json:
        _print_json(data)
        return 0
    for line in describe_status(data):
        print(printable(line))
    return 0


def _progress(worker: Mapping[str, Any]) -> Iterator[str]:
    """The progress of a worker, if its heartbeats report it."""
    if worker.get("step") is not None:
        total = worker["total_steps"]
        yield f", step {worker['step']}" + ("" if total is None else f" of {total}")
        if rate := worker["steps_per_second"]:
            yield f", {rate:.3g} a second"
        if (left := worker["seconds_left"]) is not None:
            yield f", {left:.0f} s left"


def _held(worker: Mapping[str, Any]) -> str:
    """Why a worker cannot run, and since when."""
    if not worker.get("held"):
        return ""
    return f", {worker['held']} since {_clock(worker['held_since'])}"


def describe_status(data: Mapping[str, Any]) -> Iterator[str]:
    """The status of a launch as lines."""
    yield f"run id     {data['run_id']} on {data['host']}, launcher pid {data['agent_pid']}"
    state = f"{data['phase']} ({data['state']}) since {_clock(data['since'])}"
    if not data["alive"]:
        state += f"; its loop has not reported for {data['silent_seconds']:.0f} s"
    yield f"state      {state}"
    if data["waiting_for"]:
        yield f"waits for  {data['waiting_for']}"
    if data["round"] is not None:
        yield (
            f"round      {data['round']}, attempt {data['attempt']} of {data['max_restarts']} "
            "restarts at most"
        )
    if data["ranks"]:
        count = data["group_world_size"]
        yield (
            f"ranks      {data['ranks']} of {data['world_size']}; node {data['group_rank']} of "
            f"{count}"
        )
        nodes = data.get("nodes", ())
        if len(nodes) > 1:
            yield from map(_describe_node, nodes)
        elif count and count > 1:
            yield "           of the other nodes only the number is known; run plaunchctl there"
    for worker in data["workers"]:
        code = "" if worker["exit_code"] is None else f", exit code {worker['exit_code']}"
        state = f"{worker['state']}{code}{_held(worker)}{''.join(_progress(worker))}"
        yield f"  rank {worker['global_rank']:<4} pid {worker['pid']:<8} {state}"
    for name, text in data.get("notes", {}).items():
        yield f"{name:<10} {text}"
    failure = data["failure"]
    if failure:
        yield (
            f"failed     rank {failure['global_rank']} on {failure['failed_host']} in round "
            # Launchers of earlier versions send no headline.
            f"{failure['round']}: {failure.get('headline') or failure['exit_code']}"
        )
    if data["command"]:
        yield f"command    {' '.join(data['command'])}"


def _describe_node(node: Mapping[str, Any]) -> str:
    if node["phase"] is None:
        return f"  {node['host']}: no answer"
    text = (
        f"  node {node['group_rank']} {node['host']}: {node['phase']}, {name_ranks(node['ranks'])}"
    )
    return text if node["alive"] else f"{text}; its loop has not reported"


def stacks(launch: Launch, options: argparse.Namespace) -> int:
    """Show the stacks of the workers."""
    page = _page("/v1/stacks", ranks=options.ranks)
    try:
        data = ask(launch.path, page, patience=options.timeout)
    except SilentError:
        raise ClientError(f"it sent no stacks within {options.timeout:g} s") from None
    if options.json:
        _print_json(data)
        return 0
    for line in data["lines"]:
        print(printable(line))
    for one in data["folders"]:
        print(printable(f"whole stacks of {one['host']}: {one['folder']}"))
    for note in data["notes"]:
        sys.stderr.write(f"plaunchctl: {printable(note)}\n")
    return 0


def send_request(launch: Launch, options: argparse.Namespace) -> int:
    """Request a stop, a restart or a leave."""
    given = {"reason": options.reason}
    if getattr(options, "all_nodes", False):
        given["all_nodes"] = True
    data = ask(launch.path, f"/v1/{options.command}", given, patience=options.timeout)
    action = {
        "stop": "stop the job" if data["nodes"] == "all" else "stop",
        "restart": "restart all workers",
        "leave": "leave the job",
    }[options.command]
    where = " on all nodes" if data["nodes"] == "all" and options.command != "leave" else ""
    return _report(data, options, f"asked {launch} to {action}{where}")


def send_signal(launch: Launch, options: argparse.Namespace) -> int:
    """Send a signal to workers."""
    given = {"signal": options.signal, "ranks": options.ranks}
    data = ask(launch.path, "/v1/signal", given, patience=options.timeout)
    return _report(
        data, options, f"{data['signal']} is sent to {name_ranks(data['ranks'])} of {launch}"
    )


def _report(data: dict[str, Any], options: argparse.Namespace, text: str) -> int:
    if options.json:
        _print_json(data)
        return 0
    if not data.get("alive", True):
        text += (
            f"; its loop has not reported for {data['silent_seconds']:.0f} s and must resume first"
        )
    print(printable(text))
    return 0


def events(launch: Launch, options: argparse.Namespace) -> int:
    """Show the events of a launch."""
    for event in _events(launch, options.timeout, follow=options.follow):
        if options.json:
            print(json.dumps(event), flush=True)
            continue
        facts = [
            f"{key}={_fact(value)}"
            for key, value in event["metadata"].items()
            if value not in (None, "") and key not in _COMMON
        ]
        name = event["name"].removeprefix("plaunch.")
        print(printable(" ".join((_clock(event["timestamp"]), name, *facts))), flush=True)
    return 0


# Metadata that is the same in all events of a launch or of a round.
_COMMON = frozenset(
    [
        *("run_id", "host", "role", "agent_pid", "entry_point", "elapsed", "backend"),
        *("ranks", "group_rank", "group_world_size", "role_rank", "role_world_size"),
    ]
)


def _fact(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text else text


def _events(launch: Launch, timeout: float, *, follow: bool) -> Iterator[dict[str, Any]]:
    after = 0
    data: dict[str, Any]
    while True:
        wait = _LONG_POLL if follow else 0
        try:
            page = _page("/v1/events", after=after, wait=wait)
            data = ask(launch.path, page, patience=wait + timeout)
        except SilentError:
            if not follow:
                raise
            continue  # it is suspended, and may resume
        except GoneError:
            if not after:
                raise
            sys.stderr.write("plaunchctl: the launch has ended; its last events are missing\n")
            return
        if data["missed"]:
            sys.stderr.write(f"plaunchctl: {data['missed']} older events were dropped\n")
        yield from data["events"]
        after = data["next"]
        if data["over"] or not follow:
            return


def wait(launch: Launch, options: argparse.Namespace) -> int:
    """Wait for the end of a launch; return its exit code.

    Raises:
        GoneError: it ended without an exit code, because it was killed, for example.
    """
    # Two requests are always pending, so that the end cannot fall between an answer and the next
    # request.
    pending = [_ask_for_end(launch, _LONG_POLL / 2), _ask_for_end(launch, _LONG_POLL)]
    while pending:
        try:
            end = pending.pop(0).answer()
            if end["over"]:
                break
            pending.append(_ask_for_end(launch, _LONG_POLL))
        except SilentError:
            pending.append(_ask_for_end(launch, _LONG_POLL))  # it is suspended, and may resume
        except GoneError:
            if not pending:
                raise
    if options.json:
        _print_json({key: end[key] for key in ("outcome", "exit_code", "reason")})
    else:
        print(printable(f"{launch} has ended: {end['outcome']}, exit code {end['exit_code']}"))
    return int(end["exit_code"])


def _ask_for_end(launch: Launch, wait: float) -> PendingRequest:
    return PendingRequest(launch.path, _page("/v1/end", wait=wait), patience=_PATIENCE)


def logs(launch: Launch, options: argparse.Namespace) -> int:
    """Show the log files of the workers of this node."""
    from plaunch_control.logs import show_logs  # imports `re`

    data = ask(launch.path, "/v1/logs", patience=options.timeout)
    if options.json:
        _print_json(data)
        return 0
    return show_logs(launch, data, options)


COMMANDS: dict[str, Callable[[Launch, argparse.Namespace], int]] = {
    "status": status,
    "stacks": stacks,
    "logs": logs,
    "signal": send_signal,
    "stop": send_request,
    "restart": send_request,
    "leave": send_request,
    "events": events,
    "wait": wait,
}


def _page(path: str, **given: object) -> str:
    words = [f"{key}={value}" for key, value in given.items() if value is not None]
    return f"{path}?{'&'.join(words)}" if words else path


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _print_json(data: object) -> None:
    print(json.dumps(data, indent=1))


def _print_table(rows: list[dict[str, Any]]) -> None:
    titles = ("run id", "pid", "state", "round", "attempt", "ranks", "since", "command")
    cells: list[tuple[str, ...]] = [titles]
    for row in rows:
        since = row.get("since")
        command = row.get("command") or [row.get("error", "")]
        cells.append(
            (
                str(row["run_id"]),
                str(row["pid"]),
                str(row["state"]),
                _known(row.get("round")),
                _known(row.get("attempt")),
                _known(row.get("ranks")),
                _clock(since) if since else "-",
                " ".join(command),
            )
        )
    cells = [tuple(map(printable, row)) for row in cells]
    widths = [max(len(line[n]) for line in cells) for n in range(len(titles) - 1)]
    room = os.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in cells:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False))
        print(f"{text}  {line[-1]}"[:room].rstrip())


def _known(value: object) -> str:
    return "-" if value is None else str(value)
