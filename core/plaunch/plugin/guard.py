"""The guard: how plaunch calls code of a plugin.

`CallGuard.call` makes every such call on another thread. plaunch waits for a limited time, then
abandons the thread. Errors name the plugin, its distribution and version, and the function.
plaunch's own plugins are called in the same way.

Two things run on the calling thread, without a time limit. Imports do, since some packages install
signal handlers, which Python allows on the main thread only; `metadata.import_errors` names the
plugin in their errors. Methods that the agent or the rendezvous calls directly do as well;
`Culprits.naming_plugins` finds the plugin by the traceback.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import signal
import sys
import threading
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.agent.status import AgentStatus
from plaunch.errors import PlaunchError, PluginError, one_line
from plaunch.process.marks import owns_process
from plaunch.process.proc import read_masks
from plaunch.threads import BoundedCall, CallThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

logger = logging.getLogger("plaunch")

WARN_AFTER = 10.0  # seconds after which a longer wait is logged
_SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)


# --- whose code it is -----------------------------------------------------------------------------


class Culprits:
    """Finds the third-party plugin whose code raised an exception, by the traceback."""

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}
        self._packages: dict[str, str] = {}

    def note(self, module: str, who: str) -> None:
        """Record that `module`, and the rest of its package, belongs to the plugin `who`.

        If a package has several plugins, the first one is named for its other modules. A namespace
        package, such as `google`, belongs to no plugin.
        """
        self._modules.setdefault(module, who)
        package = module.rpartition(".")[0]
        if package:
            self._packages.setdefault(package, who)

    def error_for(self, error: BaseException) -> PluginError | None:
        """Return the error that names the plugin whose code raised an exception, or called it.

        It names the plugin's outermost function too, which is what plaunch has called. Returns None
        if the exception does not come from a plugin.
        """
        called: dict[str, str] = {}  # functions by the plugin, the innermost plugin last
        traceback = error.__traceback__
        while traceback is not None:
            if who := self._owner(traceback.tb_frame):
                called[who] = called.pop(who, traceback.tb_frame.f_code.co_name)
            traceback = traceback.tb_next
        if not called:
            return None
        who, function = called.popitem()
        doing = f" in {function}" if function.isidentifier() else ""  # not <module> or <lambda>
        return PluginError(f"{who} failed{doing}: {one_line(error)}")

    @contextlib.contextmanager
    def naming_plugins(self) -> Iterator[None]:
        """Run a launch; name the plugin in an exception that its code has raised.

        `sys.exit` is an error, too, unless a program calls it that launches from its own process.

        Raises:
            PluginError: code of a plugin failed, or something called `sys.exit` in the launcher.
        """
        try:
            yield
        except PlaunchError:
            raise
        except (Exception, SystemExit) as error:
            found = self.error_for(error)
            if found is not None:
                raise found from error
            if isinstance(error, Exception) or not owns_process():
                raise
            raise PluginError(
                f"something called sys.exit({error.code!r}) in the launcher; PLAUNCH_DEBUG=1 "
                "shows where"
            ) from error

    def _owner(self, frame: FrameType) -> str | None:
        name = frame.f_globals.get("__name__")
        while isinstance(name, str) and name:
            if name in self._modules:
                return self._modules[name]
            if name in self._packages and not _is_namespace(name):
                return self._packages[name]
            name = name.rpartition(".")[0]
        return None


def _is_namespace(package: str) -> bool:
    """Whether a package is a namespace package, which has no file."""
    module = sys.modules.get(package)
    return module is not None and getattr(module, "__file__", None) is None


# --- calls ----------------------------------------------------------------------------------------


class NotReturnedError(PluginError):
    """Code of a plugin has not returned in time. Its thread may still run."""


@contextlib.contextmanager
def keeping_sigchld(who: str, doing: str) -> Iterator[None]:
    """Run code of a plugin, or wait for it; restore SIGCHLD if the plugin has changed it.

    If SIGCHLD is ignored, the kernel discards the exit codes of workers. Only the main thread can
    restore it; other threads do not check.

    Args:
        who: the plugin, for messages.
        doing: the call, such as the name of a hook.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, handler = _sigchld(), signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        # Python cannot install a handler again that C code has installed.
        if handler is not None and _sigchld() != before:
            signal.signal(signal.SIGCHLD, handler)
            logger.warning(
                "%s has changed what SIGCHLD does (%s); plaunch has undone this, because it would "
                "lose the exit codes of workers",
                who,
                doing,
            )


def _sigchld() -> tuple[object, ...]:
    """The disposition of SIGCHLD in Python and in the kernel: C code may have changed it."""
    masks = read_masks() or (0, 0)
    return signal.getsignal(signal.SIGCHLD), *(mask & _SIGCHLD_BIT for mask in masks)


class CallLimits(NamedTuple):
    """How long plaunch waits for code of plugins, in seconds.

    Args:
        hook: for an implementation of a hook with a result.
        notification: for an implementation of a notification hook, and for `rest` and `release` of
            an extension.
        component: for a factory, and for a method of a component.
        decision: for a decision of a signal policy or a restart policy.
        start: for `start` of an extension.
        stop: for `stop` of an extension.
        after_failure: for the creation of an extension after a failure, and for its `stop`.
        others: for hooks and methods with a limit of their own, by name.
    """

    hook: float = 10.0
    notification: float = 1.0
    component: float = 60.0
    decision: float = 1.0
    start: float = 10.0
    stop: float = 2.0
    after_failure: float = 10.0
    others: Mapping[str, float] = MappingProxyType(
        {"plaunch_doctor_checks": 15.0, "describe_wait": 1.0}
    )


DEFAULT_LIMITS = CallLimits()


class CallGuard:
    """Calls the plugins of one launch, on threads that are abandoned if a call hangs.

    Args:
        limits: how long to wait.
        warn_after: seconds after which a longer wait is logged.
    """

    def __init__(
        self, limits: CallLimits = DEFAULT_LIMITS, *, warn_after: float = WARN_AFTER
    ) -> None:
        self.limits = limits
        self.status = AgentStatus()  # of the agent of the launch, which gets it
        self.last_wait = -math.inf  # when it last waited for a slow call; monotonic seconds
        self._warn_after = warn_after
        self._abandoned: dict[tuple[str, str], BoundedCall] = {}
        self._thread = CallThread()

    def call(
        self,
        who: str,
        doing: str,
        function: Callable[[], object],
        seconds: float | None = None,
        *,
        until_stop: bool = False,
        passing: tuple[type[Exception], ...] = (),
        advice: str = "",
        is_repeated: bool = False,
    ) -> Any:
        """Call code of a plugin on a thread, which is abandoned if it does not return in time.

        Args:
            who: the plugin, for messages.
            doing: the call, such as the name of a hook.
            function: makes the call.
            seconds: how long to wait; by default the limit for `doing`, or for a component.
            until_stop: whether to give up waiting once the launch is to stop.
            passing: exceptions of the plugin that are raised unchanged.
            advice: the end of the message if the call does not return.
            is_repeated: whether such calls are made for each worker: they share a thread, which
                `rest` ends.

        Raises:
            NotReturnedError: the call has not returned.
            PluginError: the call failed, or called `sys.exit`.
        """
        if seconds is None:
            seconds = self.limits.others.get(doing, self.limits.component)
        gives_up = self._is_to_stop if until_stop else lambda: False
        with keeping_sigchld(who, doing):
            start = self._thread.call if is_repeated else BoundedCall
            call = start(f"plugin-{doing}", function)
            has_returned = call.wait(min(seconds, self._warn_after), gives_up)
            if not has_returned and seconds > self._warn_after and not gives_up():
                logger.warning(
                    "%s has not returned from %s within %g s; the launcher waits up to %g s for it",
                    who,
                    doing,
                    self._warn_after,
                    seconds,
                )
                has_returned = call.wait(seconds - self._warn_after, gives_up)
        if has_returned:
            if call.error is None:
                return call.result
            if isinstance(call.error, passing):
                raise call.error
            raise PluginError(f"{who} failed in {doing}: {one_line(call.error)}") from call.error
        self._abandoned[who, doing] = call
        if gives_up():
            # The error is not printed: the launch stops for another reason.
            text = f"{who} had not returned from {doing} when the launch had to stop"
            logger.warning("%s", text)
            raise NotReturnedError(text)
        raise NotReturnedError(f"{who} has not returned from {doing} within {seconds:g} s{advice}")

    def rest(self) -> None:
        """End the thread of repeated calls until the next one."""
        self._thread.rest()

    def limited(self, who: str, doing: str, function: Callable[..., object]) -> Callable[..., Any]:
        """Return a plugin's function as the agent's loop calls it: each call through the guard.

        The wait ends once the launch is to stop. Until an abandoned call returns, further ones fail
        at once. Exceptions pass unchanged, since the caller adds facts such as the rank to some;
        `Culprits` names plugin and method in the others.
        """

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> Any:
            if self.is_busy(who, doing):
                raise NotReturnedError(f"{who} has still not returned from {doing}")
            return self.call(
                who,
                doing,
                functools.partial(function, *args, **kwargs),
                until_stop=True,
                passing=(Exception,),
                advice="; fix what it waits for",
            )

        return call

    def is_busy(self, who: str, doing: str = "") -> bool:
        """Whether an abandoned call of a plugin still runs: any, or that of the name `doing`."""
        return any(
            call.is_out()
            for (plugin, name), call in list(self._abandoned.items())
            if plugin == who and doing in ("", name)
        )

    def left_behind(self) -> list[str]:
        """Return a text for each abandoned call that still runs, such as `X has not returned`."""
        return [
            f"{who} has not returned from {doing}"
            for (who, doing), call in list(self._abandoned.items())
            if call.is_out()
        ]

    def _is_to_stop(self) -> bool:
        """Record that the guard waits, and return whether the launch is to stop."""
        self.last_wait = time.monotonic()
        return self.status.is_asked_to_end()
