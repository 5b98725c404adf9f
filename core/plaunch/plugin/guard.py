"""The guard: how plaunch calls code of a plugin.

Each call runs on its own thread. plaunch waits for a limited time, then abandons the thread. Errors
name the plugin, its distribution and version, and the function. plaunch's own plugins are called in
the same way.

`bounded_call` makes every such call. `Hooks` wraps each hook implementation in it when a plugin is
registered, `CallGuard.limit_call` a method that the agent's loop calls.

Imports are the exception: they stay on the calling thread and have no time limit, since some
packages install signal handlers, which Python allows on the main thread only. `import_errors` names
the plugin in their errors.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import sys
import threading
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.errors import PluginError, PluginLoadError, SignalException, one_line
from plaunch.plugin.metadata import ALL_KINDS, FIRST_PARTY, LIFECYCLE
from plaunch.process.proc import read_masks
from plaunch.threads import BoundedCall
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

logger = logging.getLogger("plaunch")

WARN_AFTER = 10.0  # seconds after which a longer wait is logged

_LABELS = {kind.name: kind.label for kind in ALL_KINDS}
_SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)


# --- whose code it is -----------------------------------------------------------------------------


@plain_dataclass
class LoadedPlugin(Value):
    """A plugin of this launch, and where it comes from.

    `distribution` and `version` are empty for plugins passed in code and for modules named with
    `-p`; `module` is the module that was imported, or that defines the object.
    """

    kind: str
    name: str
    distribution: str
    version: str
    module: str

    @property
    def is_first_party(self) -> bool:
        """Whether the plugin comes with plaunch."""
        return self.distribution == FIRST_PARTY

    @property
    def origin(self) -> str:
        """Its module, after its distribution and version if it was installed."""
        if not self.distribution:
            return f"module {self.module}"
        release = f"{self.distribution} {self.version}".rstrip()
        return f"distribution {release}, module {self.module}"

    @property
    def who(self) -> str:
        """Its name in messages: kind, name and origin."""
        return f"{_LABELS.get(self.kind, LIFECYCLE.label)} {self.name!r} ({self.origin})"


class Culprits:
    """Finds the third-party plugin whose code raised an exception, by the traceback.

    For code that plaunch calls without the guard, such as methods of a rendezvous handler.
    plaunch's own plugins are not recorded: a bug in one of them is an internal error.
    """

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
    def refusing_exits(self) -> Iterator[None]:
        """Run a launch; convert `sys.exit` in a plugin to an error.

        Raises:
            PluginError: a plugin called `sys.exit`.
        """
        try:
            yield
        except SystemExit as error:
            found = self.error_for(error)
            if found is None:
                raise  # called by the program that launches
            raise found from error

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

    def __init__(self, text: str, call: BoundedCall) -> None:
        super().__init__(text)
        self.call = call


@contextlib.contextmanager
def import_errors(
    failure: str,
    *,
    advice: Callable[[BaseException], str] = lambda error: "",
) -> Iterator[None]:
    """Import a plugin on this thread; convert what that raises into an error that names it.

    SystemExit too: it must not end the launch as if it had succeeded. Ctrl-C and signals pass.

    Args:
        failure: the beginning of the message: the plugin, and what failed.
        advice: returns the end of the message for an exception.

    Raises:
        PluginLoadError: the import failed.
    """
    try:
        yield
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        raise PluginLoadError(f"{failure}: {one_line(error)}{advice(error)}") from error


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
        notification: for an implementation of a notification hook.
        component: for a factory, and for a method of a component.
        decision: for a decision of a signal policy or a restart policy.
        others: for hooks and methods with a limit of their own, by name.
    """

    hook: float = 10.0
    notification: float = 1.0
    component: float = 60.0
    decision: float = 1.0
    others: Mapping[str, float] = MappingProxyType(
        {"plaunch_doctor_checks": 15.0, "describe_wait": 1.0}
    )


DEFAULT_LIMITS = CallLimits()


def _never() -> bool:
    return False


def bounded_call(
    who: str,
    doing: str,
    function: Callable[[], object],
    seconds: float,
    is_unwanted: Callable[[], bool] = _never,
    *,
    passing: tuple[type[Exception], ...] = (),
    advice: str = "",
    warns: bool = True,
    warn_after: float = WARN_AFTER,
) -> Any:
    """Call code of a plugin on a thread, which is abandoned if it does not return in time.

    Args:
        who: the plugin, for messages.
        doing: the call, such as the name of a hook.
        function: makes the call.
        seconds: how long to wait.
        is_unwanted: returns whether the launch is to stop; called while waiting.
        passing: exceptions of the plugin that are raised unchanged.
        advice: the end of the message if the call does not return.
        warns: whether to log that the wait ended because the launch is to stop.
        warn_after: seconds after which a longer wait is logged.

    Raises:
        NotReturnedError: the call has not returned.
        PluginError: the call failed, or called `sys.exit`.
    """
    with keeping_sigchld(who, doing):
        call = BoundedCall(f"plugin-{doing}", function)
        has_returned = call.wait(min(seconds, warn_after), is_unwanted)
        if not has_returned and seconds > warn_after and not is_unwanted():
            logger.warning(
                "%s has not returned from %s within %g s; the launcher waits up to %g s for it",
                who,
                doing,
                warn_after,
                seconds,
            )
            has_returned = call.wait(seconds - warn_after, is_unwanted)
    if has_returned:
        if call.error is None:
            return call.result
        if isinstance(call.error, passing):
            raise call.error
        raise PluginError(f"{who} failed in {doing}: {one_line(call.error)}") from call.error
    if is_unwanted():
        # The error is not printed: the launch stops for another reason.
        text = f"{who} had not returned from {doing} when the launch had to stop"
        if warns:
            logger.warning("%s", text)
        raise NotReturnedError(text, call)
    raise NotReturnedError(
        f"{who} has not returned from {doing} within {seconds:g} s{advice}", call
    )


class CallGuard:
    """Calls the plugins of one launch within its limits.

    Args:
        limits: how long to wait.
    """

    def __init__(self, limits: CallLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._is_unwanted: Callable[[], bool] = _never

    def is_unwanted(self) -> bool:
        """Whether to give up waiting, because the launch is to stop."""
        return self._is_unwanted()

    def stop_waiting_when(self, is_unwanted: Callable[[], bool]) -> ExitStack:
        """Give up waiting for hooks with a result; see `PluginManager.stop_waiting_when`."""
        before, self._is_unwanted = self._is_unwanted, is_unwanted

        def restore() -> None:
            self._is_unwanted = before

        undo = ExitStack()
        undo.callback(restore)
        return undo

    def limit_call(
        self, who: str, doing: str, function: Callable[..., object]
    ) -> Callable[..., Any]:
        """Wrap a plugin's function that the agent's loop calls and waits for.

        Each call runs on a thread, and is abandoned after a minute or once the launch is to stop;
        until it returns, further calls fail at once. Exceptions pass unchanged, since the caller
        adds facts such as the rank to some; `Culprits` names plugin and method in the others.
        """
        limits = self.limits
        left: BoundedCall | None = None

        @functools.wraps(function)
        def limited(*args: object, **kwargs: object) -> object:
            nonlocal left
            if left is not None and left.is_out():
                raise NotReturnedError(f"{who} has still not returned from {doing}", left)
            try:
                return bounded_call(
                    who,
                    doing,
                    lambda: function(*args, **kwargs),
                    limits.others.get(doing, limits.component),
                    self.is_unwanted,
                    passing=(Exception,),
                    advice="; fix what it waits for",
                )
            except NotReturnedError as error:
                left = error.call
                raise

        return limited
