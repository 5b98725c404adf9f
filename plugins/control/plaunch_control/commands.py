"""The commands of `plaunchctl`: each asks one launch, or all, and prints what it says."""

from __future__ import annotations

import json
import os
import sys
import time

from plaunch.lazy import TYPE_CHECKING
from plaunch.numbers import name_ranks

from plaunch_control.client import ClientError, GoneError, Question, SilentError, ask

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from plaunch_control.launches import Launch

_LONG_POLL = 2.0  # seconds that a question for events, or for the end, waits at the launch
_PATIENCE = 5.0  # seconds for the answer to it
_LOOK_PATIENCE = 6.0  # seconds for stacks: nodes have three to answer
_KEYS = ("run_id", "state", "round", "attempt", "ranks", "since", "command")


def ps(launches: list[Launch], options: argparse.Namespace) -> int:
    """List all launches; those that do not answer are in the list as well."""
    rows = [row for row in _side_by_side(launches, _row_of) if row is not None]
    if options.json:
        _print_json(rows)
    elif rows:
        _print_table(rows)
    else:
        print("no launch of this user is known on this host")
    return 0


def _row_of(launch: Launch) -> dict[str, Any] | None:
    row: dict[str, Any] = {"run_id": launch.run_id, "pid": launch.pid}
    try:
        told = ask(launch.path, "/v1/status")
    except GoneError:
        from plaunch_control.door import remove_stale  # seldom

        remove_stale(launch.path)
        return None
    except ClientError as error:
        state = "no answer" if isinstance(error, SilentError) else "unknown"
        return {**row, "state": state, "error": str(error)}
    return {
        "run_id": told.get("run_id"),
        "pid": launch.pid,
        "state": told.get("phase") if told.get("alive") else "stuck",
        "round": told.get("round"),
        "attempt": told.get("attempt"),
        "ranks": told.get("ranks"),
        "since": told.get("started"),
        "command": told.get("command"),
    }


def _side_by_side(launches: list[Launch], function: Callable[[Launch], Any]) -> list[Any]:
    """Ask several at once: each that does not answer takes two seconds."""
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
    """Show what one launch does, and where it is asked the others of its job."""
    told = ask(launch.path, _page("/v1/status", nodes=1))
    if options.json:
        _print_json(told)
        return 0
    for line in describe_status(told):
        print(plain(line))
    return 0


def _progress(worker: Mapping[str, Any]) -> Iterator[str]:
    """How far a worker is, if it says so with its heartbeats."""
    if worker.get("step") is not None:
        total = worker["total_steps"]
        yield f", step {worker['step']}" + ("" if total is None else f" of {total}")
        if rate := worker["steps_per_second"]:
            yield f", {rate:.3g} a second"
        if (left := worker["seconds_left"]) is not None:
            yield f", {left:.0f} s left"


def _held(worker: Mapping[str, Any]) -> str:
    """What holds a worker that cannot run, and since when."""
    if not worker.get("held"):
        return ""
    return f", {worker['held']} since {_clock(worker['held_since'])}"


def describe_status(told: Mapping[str, Any]) -> Iterator[str]:
    """What a launch does, in lines."""
    yield f"run id     {told['run_id']} on {told['host']}, launcher pid {told['agent_pid']}"
    state = f"{told['phase']} ({told['state']}) since {_clock(told['since'])}"
    if not told["alive"]:
        state += f"; its loop has not reported for {told['silent_seconds']:.0f} s"
    yield f"state      {state}"
    if told["waiting_for"]:
        yield f"waits for  {told['waiting_for']}"
    if told["round"] is not None:
        yield (
            f"round      {told['round']}, attempt {told['attempt']} of {told['max_restarts']} "
            "restarts at most"
        )
    if told["ranks"]:
        count = told["group_world_size"]
        yield (
            f"ranks      {told['ranks']} of {told['world_size']}; node {told['group_rank']} of "
            f"{count}"
        )
        nodes = told.get("nodes", ())
        if len(nodes) > 1:
            yield from map(_describe_node, nodes)
        elif count and count > 1:
            yield "           of the other nodes only their number is known here; ask there"
    for worker in told["workers"]:
        code = "" if worker["exit_code"] is None else f", exit code {worker['exit_code']}"
        state = f"{worker['state']}{code}{_held(worker)}{''.join(_progress(worker))}"
        yield f"  rank {worker['global_rank']:<4} pid {worker['pid']:<8} {state}"
    for name, text in told.get("notes", {}).items():
        yield f"{name:<10} {text}"
    failure = told["failure"]
    if failure:
        yield (
            f"failed     rank {failure['global_rank']} on {failure['failed_host']} in round "
            # A launcher of an earlier version has no headline.
            f"{failure['round']}: {failure.get('headline') or failure['exit_code']}"
        )
    if told["command"]:
        yield f"command    {' '.join(told['command'])}"


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
        told = ask(launch.path, page, patience=_LOOK_PATIENCE)
    except SilentError:
        raise ClientError(f"it has shown no stacks within {_LOOK_PATIENCE:g} s") from None
    if options.json:
        _print_json(told)
        return 0
    for line in told["lines"]:
        print(plain(line))
    for one in told["folders"]:
        print(plain(f"whole stacks of {one['host']}: {one['folder']}"))
    for note in told["notes"]:
        sys.stderr.write(f"plaunchctl: {plain(note)}\n")
    return 0


def order(launch: Launch, options: argparse.Namespace) -> int:
    """Ask for a stop, a restart or a departure."""
    given = {"reason": options.reason}
    if getattr(options, "all_nodes", False):
        given["all_nodes"] = True
    told = ask(launch.path, f"/v1/{options.command}", given)
    what = {
        "stop": "stop the job" if told["nodes"] == "all" else "stop",
        "restart": "restart all workers",
        "leave": "leave the job",
    }[options.command]
    where = " on all nodes" if told["nodes"] == "all" and options.command != "leave" else ""
    return _said(told, options, f"asked {launch} to {what}{where}")


def send_signal(launch: Launch, options: argparse.Namespace) -> int:
    """Send a signal to workers."""
    told = ask(launch.path, "/v1/signal", {"signal": options.signal, "ranks": options.ranks})
    return _said(
        told, options, f"{told['signal']} is sent to {name_ranks(told['ranks'])} of {launch}"
    )


def _said(told: dict[str, Any], options: argparse.Namespace, text: str) -> int:
    if options.json:
        _print_json(told)
        return 0
    if not told.get("alive", True):
        text += (
            f"; its loop has not reported for {told['silent_seconds']:.0f} s and must come first"
        )
    print(plain(text))
    return 0


def events(launch: Launch, options: argparse.Namespace) -> int:
    """Show what has happened."""
    for event in _events(launch, follow=options.follow):
        if options.json:
            print(json.dumps(event), flush=True)
            continue
        facts = [
            f"{key}={_fact(value)}"
            for key, value in event["metadata"].items()
            if value not in (None, "") and key not in _COMMON
        ]
        name = event["name"].removeprefix("plaunch.")
        print(plain(" ".join((_clock(event["timestamp"]), name, *facts))), flush=True)
    return 0


# What is the same in all events of a launch, or of a round.
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


def _events(launch: Launch, *, follow: bool) -> Iterator[dict[str, Any]]:
    after = 0
    told: dict[str, Any]
    while True:
        wait = _LONG_POLL if follow else 0
        try:
            told = ask(launch.path, _page("/v1/events", after=after, wait=wait), patience=_PATIENCE)
        except SilentError:
            if not follow:
                raise
            continue  # it is suspended, and may go on
        except GoneError:
            if not after:
                raise
            sys.stderr.write("plaunchctl: the launch has ended; its last events were not seen\n")
            return
        if told["missed"]:
            sys.stderr.write(f"plaunchctl: {told['missed']} older events are not kept any more\n")
        yield from told["events"]
        after = told["next"]
        if told["over"] or not follow:
            return


def wait(launch: Launch, options: argparse.Namespace) -> int:
    """Wait for the end of a launch; its exit code.

    Raises:
        GoneError: it has ended, and did not say how; it was killed, perhaps.
    """
    # Two questions wait at any time: the end must not fall between an answer and the next one.
    asked = [_ask_for_end(launch, _LONG_POLL / 2), _ask_for_end(launch, _LONG_POLL)]
    while asked:
        try:
            told = asked.pop(0).answer()
            if told["over"]:
                break
            asked.append(_ask_for_end(launch, _LONG_POLL))
        except SilentError:
            asked.append(_ask_for_end(launch, _LONG_POLL))  # it is suspended, and may go on
        except GoneError:
            if not asked:
                raise
    if options.json:
        _print_json({key: told[key] for key in ("outcome", "exit_code", "reason")})
    else:
        print(plain(f"{launch} has ended: {told['outcome']}, exit code {told['exit_code']}"))
    return int(told["exit_code"])


def _ask_for_end(launch: Launch, wait: float) -> Question:
    return Question(launch.path, _page("/v1/end", wait=wait), patience=_PATIENCE)


def logs(launch: Launch, options: argparse.Namespace) -> int:
    """Show the log files of the workers of this node."""
    from plaunch_control.logs import show_logs  # imports `re`

    told = ask(launch.path, "/v1/logs")
    if options.json:
        _print_json(told)
        return 0
    return show_logs(launch, told, options)


COMMANDS: dict[str, Callable[[Launch, argparse.Namespace], int]] = {
    "status": status,
    "stacks": stacks,
    "logs": logs,
    "signal": send_signal,
    "stop": order,
    "restart": order,
    "leave": order,
    "events": events,
    "wait": wait,
}


def _page(path: str, **given: object) -> str:
    words = [f"{key}={value}" for key, value in given.items() if value is not None]
    return f"{path}?{'&'.join(words)}" if words else path


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _print_json(told: object) -> None:
    print(json.dumps(told, indent=1))


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
    cells = [tuple(map(plain, row)) for row in cells]
    widths = [max(len(line[n]) for line in cells) for n in range(len(titles) - 1)]
    room = os.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in cells:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False))
        print(f"{text}  {line[-1]}"[:room].rstrip())


def plain(text: str) -> str:
    r"""A text for a terminal: what that does not show becomes an escape, such as `\x1b`."""
    if text.isprintable():
        return text
    from plaunch_membership import printable  # seldom; it imports `typing`

    return printable(text)


def _known(value: object) -> str:
    return "-" if value is None else str(value)
