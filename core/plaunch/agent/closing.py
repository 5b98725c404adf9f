"""What is left to do when an agent is through; none of it may hide how the job has ended."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from plaunch.agent.alive import Alive
from plaunch.agent.poller import BackgroundCall, Poller
from plaunch.agent.signals import SignalInbox
from plaunch.errors import PlaunchError, ThreadStartError
from plaunch.process.failures.error_file import text_of_error
from plaunch.process.failures.failure import NOT_AVAILABLE
from plaunch.process.launcher_variables import owns_process
from plaunch.process.stopping.signals import SignalAction
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.worker import RunResult
    from plaunch.process.failures.child_failed import ChildFailedError
    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.process.streams.logs import LogsSpecs
    from plaunch.rendezvous.api import RendezvousHandler

logger = logging.getLogger("plaunch")

_LEAVE_WAIT = 2.0  # seconds for what `shutdown` is in the middle of, once this node has left


def failure_of_job(name: str, result: RunResult, logs_specs: LogsSpecs) -> ChildFailedError:
    """The error of a launch of `name` whose workers have failed."""
    forget_temporary_files(result, logs_specs)
    return result.error(name)


def forget_temporary_files(result: RunResult, logs_specs: LogsSpecs) -> None:
    """Name no error file that is gone when the report is read; it has been read itself."""
    folder = getattr(logs_specs, "temporary_dir", None)
    for failure in result.failures.values():
        if folder and failure.error_file.startswith(os.path.join(folder, "")):
            failure.error_file = NOT_AVAILABLE


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
    poller = Poller(Alive())
    try:
        with SignalInbox(policy, poller.wake_up) as inbox:
            try:
                call = BackgroundCall("shutdown", handler.shutdown, poller.wake_up)
            except ThreadStartError:
                return handler.shutdown()  # deaf, but not without a word to the other nodes
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
