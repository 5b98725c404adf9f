"""The pages that a launch serves to `plaunchctl`, in version 1; see docs/plaunchctl.md."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from plaunch import __version__
from plaunch.agent import RequestKind
from plaunch.numbers import format_ranks, name_ranks, parse_ranks, quote
from plaunch.process import read_command
from plaunch.texts import printable
from plaunch_events import LauncherStatus, redact_command

from plaunch_control.event_buffer import EventBuffer
from plaunch_control.nodes import JobNodes
from plaunch_control.requests import HttpRequest, HttpResponse, peer_user, refusal, serve

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from plaunch.agent import Control, Snapshot
    from plaunch.plugin import PluginContext

    from plaunch_control.stacks_page import StacksPage

VERSION = 1
_LONGEST_WAIT = 2.0  # seconds that a request may wait for an event, or for the end
_MOST_REASON = 200  # characters
_NO_STACKS = (
    "this launch cannot read stacks: the part of plaunch that reads them is not installed; "
    "reinstall plaunch"
)
_ROOT = 0


class ControlService:
    """Answers the requests at the socket of one launch.

    Args:
        context: the launch.
        control: the control of the agent.
        user: the user id whose requests are accepted, besides root's.
        started: when the launch began, in seconds since the epoch.
    """

    def __init__(self, context: PluginContext, control: Control, user: int, started: float) -> None:
        self._control = control
        self._user = user
        self._started = started
        self._status = LauncherStatus(context.run_id, context.role)
        self._events = EventBuffer(control.take_events, self._status.note)
        # Without secrets, because users copy `ps` into tickets.
        self._command = redact_command(read_command("self"))
        self.stacks_page = _create_stacks_page(context, control, self._count_nodes)
        self.nodes = JobNodes(control, context.host, self._describe_node)
        self._get_pages: dict[str, Callable[[Mapping[str, Any]], HttpResponse]] = {
            "/v1": self._show_index,
            "/v1/status": self._show_status,
            "/v1/events": self._show_events,
            "/v1/end": self._show_end,
            "/v1/logs": self._show_logs,
            "/v1/stacks": self._show_stacks,
        }
        self._post_pages: dict[str, Callable[[Mapping[str, Any], int], HttpResponse]] = {
            "/v1/stop": self._stop,
            "/v1/restart": self._restart,
            "/v1/leave": self._leave,
            "/v1/signal": self._signal,
        }

    def end(self) -> None:
        """Answer requests that wait for the end of the launch."""
        self._events.update()

    def serve(self, connection: socket.socket) -> None:
        """Answer one request; refuse it if it is neither of the user nor of root.

        Raises:
            OSError: the connection is broken.
        """
        user = peer_user(connection)
        if user in (self._user, _ROOT):
            serve(connection, lambda request: self.answer(request, user))
            return
        problem = f"this launch belongs to user {self._user}, and you are user {user}"
        serve(connection, lambda request: refusal(403, problem))

    def answer(self, request: HttpRequest, user: int) -> HttpResponse:
        """Answer one request of a permitted user."""
        path = request.path.rstrip("/")
        get_page, post_page = self._get_pages.get(path), self._post_pages.get(path)
        try:
            if get_page is not None and request.method == "GET":
                return get_page(request.given)
            if post_page is not None and request.method == "POST":
                return post_page(request.given, user)
        except ValueError as error:
            return refusal(400, str(error))
        if get_page is not None or post_page is not None:
            return refusal(405, f"{request.path} is for {'POST' if get_page is None else 'GET'}")
        return refusal(
            404,
            f"plaunch {__version__} has no page {quote(request.path)}",
            versions=[VERSION],
            pages=[*self._get_pages, *self._post_pages],
        )

    # --- GET --------------------------------------------------------------------------------------

    def _show_index(self, given: Mapping[str, Any]) -> HttpResponse:
        del given
        pages = {path: ["GET"] for path in self._get_pages}
        pages |= {path: ["POST"] for path in self._post_pages}
        return HttpResponse({"plaunch": __version__, "versions": [VERSION], "pages": pages})

    def _show_status(self, given: Mapping[str, Any]) -> HttpResponse:
        more: dict[str, Any] = {
            "started": self._started,
            "command": self._command,
            "is_job_wide": self._control.snapshot().is_job_wide,
        }
        if given.get("nodes"):
            more["nodes"] = self.nodes.ask()
        return HttpResponse({**self._describe_node(), **more})

    def _describe_node(self) -> dict[str, Any]:
        now = self._control.snapshot()
        self._events.update()
        return self._status.describe(
            now.waits_for or None,
            now.overdue,
            now.progress,
            self._control.held(),
            now.notes,
        )

    def _show_events(self, given: Mapping[str, Any]) -> HttpResponse:
        page = self._events.read(_integer(given, "after", 0), _wait(given))
        events = [
            {
                "name": event.name,
                "source": event.source.value,
                "timestamp": event.timestamp,
                "monotonic": event.monotonic,
                "version": event.version,
                "metadata": dict(event.metadata),
            }
            for event in page.events
        ]
        return HttpResponse(
            {
                "events": events,
                "next": page.next,
                "missed": page.missed,
                "over": page.is_over,
            }
        )

    def _show_end(self, given: Mapping[str, Any]) -> HttpResponse:
        last = self._events.read_last(_wait(given))
        end = {} if last is None else last.metadata
        keys = ("outcome", "exit_code", "reason")
        return HttpResponse({"over": last is not None, **{key: end.get(key) for key in keys}})

    def _show_logs(self, given: Mapping[str, Any]) -> HttpResponse:
        del given
        now = self._control.snapshot()
        self._events.update()
        files = [
            {
                "global_rank": worker.global_rank,
                "local_rank": local_rank,
                "stdout": _absolute(now.stdouts.get(local_rank)),
                "stderr": _absolute(now.stderrs.get(local_rank)),
            }
            for local_rank, worker in sorted(self._status.history.round.workers.items())
        ]
        return HttpResponse({"round": now.round, "attempt": now.attempt, "files": files})

    def _show_stacks(self, given: Mapping[str, Any]) -> HttpResponse:
        page = self.stacks_page
        return refusal(501, _NO_STACKS) if page is None else page.show(given)

    # --- POST -------------------------------------------------------------------------------------

    def _stop(self, given: Mapping[str, Any], user: int) -> HttpResponse:
        if given.get("all_nodes"):
            now = self._control.snapshot()
            nodes = self._count_nodes()
            if not now.is_job_wide and nodes != 1:
                return refusal(
                    409,
                    "the nodes of this job do not know each other, so only this one can be stopped "
                    "from here; stop each node, or omit --all-nodes",
                )
        return self._request(RequestKind.STOP, given, user)

    def _restart(self, given: Mapping[str, Any], user: int) -> HttpResponse:
        return self._request(RequestKind.RESTART, given, user)

    def _leave(self, given: Mapping[str, Any], user: int) -> HttpResponse:
        return self._request(RequestKind.LEAVE, given, user)

    def _request(self, kind: RequestKind, given: Mapping[str, Any], user: int) -> HttpResponse:
        reason = _reason(given)
        why = f"by uid {user}: {reason}"
        now = self._control.snapshot()
        data = {"asked": kind.value, "reason": reason, **_loop(now), "nodes": _nodes(now)}
        return HttpResponse(data, carry_out=lambda: self._control.request(kind, why))

    def _signal(self, given: Mapping[str, Any], user: int) -> HttpResponse:
        name = given.get("signal")
        signum = _signal_of(name)
        now = self._control.snapshot()
        wanted = parse_ranks(given["ranks"]) if given.get("ranks") is not None else None
        here = [rank for rank in now.pids if wanted is None or rank in wanted]
        if not here:
            return refusal(
                409,
                "none of these ranks runs on this node"
                + (f", which has {name_ranks(now.pids)}" if now.pids else ": no worker runs now"),
            )
        reason = f"plaunchctl signal {signum.name.removeprefix('SIG')} by uid {user}"
        return HttpResponse(
            {"signal": signum.name, "ranks": format_ranks(here), **_loop(now)},
            carry_out=lambda: self._control.signal_workers(signum, here, reason),
        )

    def _count_nodes(self) -> int | None:
        """The number of nodes of the job, or its maximum before a round; None if unknown."""
        self._events.update()
        status = self._status.describe(None, 0.0)
        nodes: int | None = status["group_world_size"] or status["max_nodes"]
        return nodes


def _create_stacks_page(
    context: PluginContext, control: Control, count_nodes: Callable[[], int | None]
) -> StacksPage | None:
    """Create the page with stacks; return None if the library that reads them is missing."""
    try:
        from plaunch_control.stacks_page import StacksPage  # needs plaunch_hang
    except ModuleNotFoundError as error:
        if error.name != "plaunch_hang":
            raise
        return None
    return StacksPage(context, control, count_nodes)


def _reason(given: Mapping[str, Any]) -> str:
    """The reason of a request, as one printable line.

    Raises:
        ValueError: the reason is not text.
    """
    reason = given.get("reason") or ""
    if not isinstance(reason, str):
        raise ValueError("the reason is not a text")  # noqa: TRY004 - answered with status 400
    text = printable(" ".join(reason.split()), _MOST_REASON)
    return text[:_MOST_REASON] or "no reason is given"


def _nodes(now: Snapshot) -> str:
    return "all" if now.is_job_wide else "this"


def _loop(now: Snapshot) -> dict[str, Any]:
    """Whether the agent's loop is running, so that it will handle the request soon."""
    return {"alive": not now.overdue, "silent_seconds": round(now.overdue, 3)}


def _signal_of(name: object) -> signal.Signals:
    """Parse the name or number of a signal.

    Raises:
        ValueError: there is no such signal.
    """
    text = str(name).upper()
    if text.isascii() and text.isdecimal():
        try:
            return signal.Signals(int(text[:9]))
        except ValueError:
            raise ValueError(f"there is no signal {text[:9]}") from None
    text = text if text.startswith("SIG") else f"SIG{text}"
    if text not in signal.Signals.__members__:
        raise ValueError(f"there is no signal {quote(name)}; one is SIGUSR1")
    return signal.Signals[text]


def _wait(given: Mapping[str, Any]) -> float:
    return min(max(_number(given, "wait", 0.0), 0.0), _LONGEST_WAIT)


def _integer(given: Mapping[str, Any], key: str, default: int) -> int:
    number = _number(given, key, float(default))
    if number != int(number):
        raise ValueError(f"{key} is not a whole number")
    return int(number)


def _number(given: Mapping[str, Any], key: str, default: float) -> float:
    try:
        number = float(given.get(key, default))
    except (TypeError, ValueError):
        raise ValueError(f"{key} is not a number") from None
    if not abs(number) < 2**53:
        raise ValueError(f"{key} is too large, or not a finite number")
    return number


def _absolute(path: str | None) -> str | None:
    return os.path.abspath(path) if path else None
