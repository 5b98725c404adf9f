"""Shutting a rendezvous down when the agent is through, so that signals are still obeyed."""

from __future__ import annotations

import logging
import select
import threading
from typing import TYPE_CHECKING

from plaunch.agent.background import BackgroundCall
from plaunch.agent.signals import SignalInbox, WakeUp
from plaunch.errors import ThreadStartError
from plaunch.process.stopping.signals import SignalAction
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.rendezvous.api import RendezvousHandler

logger = logging.getLogger("plaunch")

_LEAVE_WAIT = 2.0  # seconds for what `shutdown` is in the middle of, once this node has left


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
    wake_up = WakeUp()
    try:
        with SignalInbox(policy, wake_up) as inbox:
            try:
                call = BackgroundCall("shutdown", handler.shutdown, wake_up)
            except ThreadStartError:
                return handler.shutdown()  # deaf, but not without a word to the other nodes
            poller = select.poll()
            poller.register(wake_up.fileno(), select.POLLIN)
            while not call.is_done():
                poller.poll()
                wake_up.clear()
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
            return bool(call.result)
    finally:
        wake_up.close()
