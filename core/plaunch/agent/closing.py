"""What an agent and a launch do at their end; none of it may hide how the job has ended."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent import notifications
from plaunch.agent.poller import QUIET_INTERVAL, BackgroundCall, Poller
from plaunch.agent.signals import SignalInbox
from plaunch.agent.states import Outcome
from plaunch.agent.watchdog import LoopWatchdog
from plaunch.errors import PlaunchError, ThreadStartError, text_of_error
from plaunch.process.marks import owns_process
from plaunch.process.signals import SignalAction
from plaunch.process.streams import show_rest
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.loop_components import LoopComponents
    from plaunch.process.signals import SignalPolicy
    from plaunch.rendezvous.api import RendezvousHandler

logger = logging.getLogger("plaunch")

_LEAVE_WAIT = 2.0  # seconds for a `shutdown` that is in progress to return after `leave`
_VERDICT_WAIT = 5.0  # seconds for the other nodes to learn of a failure of this node itself
# After these outcomes no other node waits for this one.
_ENDS_OF_JOB = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CLOSED)
_LAST_CONSOLE_WAIT = 5.0  # seconds for the console after a stop signal, or an error of the agent
_REPORT_WAIT = 2.0  # seconds to report, after that wait, what was not shown


def await_verdict(components: LoopComponents, inbox: SignalInbox) -> None:
    """Wait until the job has reacted to an error of this node, which may host its store."""
    peers = components.peers
    until = time.monotonic() + _VERDICT_WAIT
    while peers.awaits_verdict() and (remaining := until - time.monotonic()) > 0:
        if any(one.action is SignalAction.STOP for one in inbox.take()):
            return
        components.poller.poll(peers.fds(), min(remaining, peers.interval))
        peers.take_changes()


def await_console(
    components: LoopComponents, inbox: SignalInbox, outcome: Outcome | None, *, is_asked: bool
) -> None:
    """Wait until a slow reader of the console has been shown all of the output.

    There is no timeout, but a stop signal or a request for the end stops the wait. If there was one
    before (`is_asked`), or other nodes may wait for this one to leave, the console has some
    seconds, which Ctrl-C ends.
    """
    streams, notifier = components.workers.streams(), components.notifier
    if streams is None or not streams.counts().lag_bytes:
        return
    is_endless = outcome in _ENDS_OF_JOB and not is_asked
    timeout = math.inf if is_endless else _LAST_CONSOLE_WAIT
    wake_up = components.poller.wake_up
    wait = BackgroundCall("console", lambda: show_rest(streams, timeout), wake_up)
    notifier.notify(notifications.ConsoleAwaited, streams.counts().lag_bytes)
    until = time.monotonic() + timeout + _REPORT_WAIT
    while not wait.is_done() and (remaining := until - time.monotonic()) > 0:
        components.poller.poll((), min(remaining, QUIET_INTERVAL))
        stops = [one for one in inbox.take() if one.action is SignalAction.STOP]
        for one in stops:
            notifier.notify(notifications.SignalReceived, one.signum, one.action)
        if is_endless:
            is_over = bool(stops) or components.requests.has_end()
        else:  # programs send SIGTERM more than once for one request
            is_over = any(one.signum in (signal.SIGINT, signal.SIGQUIT) for one in stops)
        if is_over:
            streams.escalate()
            until = min(until, time.monotonic() + _REPORT_WAIT)


def release_rendezvous(release: Callable[[], bool]) -> None:
    """Call what shuts the rendezvous down, or leaves it.

    Raises:
        SystemExit: it has been raised in another program's process, as that may wish.
    """
    try:
        if release():
            return
        why = ""
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not owns_process():
            raise
        why = f": {_text(error)}"
    logger.warning("the rendezvous could not be shut down cleanly%s", why)


def shut_down(handler: RendezvousHandler, policy: SignalPolicy) -> bool:
    """Shut `handler` down, which may wait for other nodes; a stop signal makes it leave at once.

    Args:
        handler: the rendezvous.
        policy: what signals mean.

    Returns:
        What the handler returns: whether all went well.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not isinstance(handler, JobRendezvous) or not on_main_thread:
        return handler.shutdown()
    poller = Poller(LoopWatchdog())
    try:
        with SignalInbox(policy, poller.wake_up) as inbox:
            try:
                call = BackgroundCall("shutdown", handler.shutdown, poller.wake_up)
            except ThreadStartError:
                return handler.shutdown()  # without signals, but the other nodes are notified
            while not call.is_done():
                poller.poll((), None)
                for received in inbox.take():
                    if received.action is SignalAction.STOP:
                        logger.warning(
                            "%s received; this node leaves the job", received.signum.name
                        )
                        left = handler.leave()
                        # A process that ends with a thread in a store's library may crash there.
                        call.join(_LEAVE_WAIT)
                        return left
            call.join()
            if call.error is not None:
                raise call.error
            return call.result
    finally:
        poller.close()


def _text(error: BaseException) -> str:
    text = text_of_error(error)
    return text if isinstance(error, (OSError, PlaunchError)) else f"{type(error).__name__}: {text}"
