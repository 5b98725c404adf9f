"""The guard: how plaunch calls code of a plugin.

Each call runs on its own thread. plaunch waits for a limited time, then abandons the thread. Errors
name the plugin, its distribution and version, and the function. plaunch's own plugins are called in
the same way.

`HookGuard.wrap` wraps each hook implementation once, when its plugin is registered. `bounded_call`
is for everything else: factories, and methods of the objects that they return. `blaming` is for
imports, which run on the calling thread without a time limit.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.errors import PlaunchError, PluginError, SignalException, one_line
from plaunch.plugin.context import PluginContext
from plaunch.plugin.metadata import ALL_KINDS, FIRST_PARTY, LIFECYCLE
from plaunch.process.proc import read_masks
from plaunch.threads import BoundedCall
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

logger = logging.getLogger("plaunch")

HOOK_TIMEOUT = 10.0  # seconds to wait for an implementation of a hook with a result
NOTIFY_TIMEOUT = 1.0  # seconds to wait for an implementation of a notification hook
FACTORY_TIMEOUT = 60.0  # seconds to wait for a factory, and for methods of components
WARN_AFTER = 10.0  # seconds after which a longer wait is logged
# Hooks and methods with a time limit of their own, in seconds.
_TIMEOUTS = {"plaunch_doctor_checks": 15.0, "describe_wait": 1.0}

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


@dataclass(eq=False)
class Registration:
    """A plugin that is loaded.

    Args:
        name: the name under which it is registered, `KIND:NAME`.
        plugin: the module or object with its hooks, or the object that its entry point names.
        source: where it comes from.
        options: the values of its own options, if one of them is given.
    """

    name: str
    plugin: object
    source: LoadedPlugin
    options: dict[str, object] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """Its name in messages."""
        return self.source.who


# --- calls ----------------------------------------------------------------------------------------


class NotReturnedError(PluginError):
    """Code of a plugin has not returned in time. Its thread may still run."""

    def __init__(self, text: str, call: BoundedCall) -> None:
        super().__init__(text)
        self.call = call


@contextlib.contextmanager
def blaming(
    failure: str,
    error_type: type[PluginError] = PluginError,
    *,
    advice: Callable[[BaseException], str] = lambda error: "",
) -> Iterator[None]:
    """Run code of a plugin on this thread; convert what it raises into an error that names it.

    SystemExit too: it must not end the launch as if it had succeeded. Ctrl-C and signals pass.

    Args:
        failure: the beginning of the message: the plugin, and what failed.
        error_type: the type of the error.
        advice: returns the end of the message for an exception.
    """
    try:
        yield
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        raise error_type(f"{failure}: {one_line(error)}{advice(error)}") from error


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

    Raises:
        NotReturnedError: the call has not returned.
        PluginError: the call failed, or called `sys.exit`.
    """
    with keeping_sigchld(who, doing):
        call = BoundedCall(f"plugin-{doing}", function)
        has_returned = call.wait(min(seconds, WARN_AFTER), is_unwanted)
        if not has_returned and seconds > WARN_AFTER and not is_unwanted():
            logger.warning(
                "%s has not returned from %s within %g s; the launcher waits up to %g s for it",
                who,
                doing,
                WARN_AFTER,
                seconds,
            )
            has_returned = call.wait(seconds - WARN_AFTER, is_unwanted)
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


# --- hooks ----------------------------------------------------------------------------------------


class HookResult(NamedTuple):
    """The result of one plugin's implementation of a hook."""

    plugin: Registration
    value: Any

    @property
    def who(self) -> str:
        """The plugin's name in messages."""
        return self.plugin.who


class HookGuard:
    """Wraps the hook implementations of one launch.

    A notification hook that raises, or does not return in time, is reported and switched off for
    the rest of the launch; other hooks of its plugin stay on. While a call has not returned, no
    other notification hook of the plugin is called. If the system has no threads left,
    notifications are dropped: without a thread there is no time limit.

    Any other hook that raises, or does not return in time, raises `PluginError`. plaunch's own
    exceptions pass unchanged: their messages say what is wrong.

    Args:
        notifications: the names of the notification hooks.
        with_traceback: whether to log failures of notification hooks with their traceback.
    """

    def __init__(self, notifications: Collection[str], *, with_traceback: bool = False) -> None:
        self._notifications = frozenset(notifications)
        self._with_traceback = with_traceback
        self._is_unwanted: Callable[[], bool] = _never
        self._switched_off: set[tuple[str, str]] = set()  # names of plugins and hooks
        self._running: dict[str, tuple[str, BoundedCall]] = {}  # left behind, by plugin
        self._has_warned = False  # of a lack of threads

    def stop_waiting_when(self, is_unwanted: Callable[[], bool]) -> None:
        """Give up waiting for hooks with a result once `is_unwanted` returns true."""
        self._is_unwanted = is_unwanted

    def left_behind(self) -> list[str]:
        """Return the plugins with a notification hook that still runs, for messages."""
        return [who for who, call in self._running.values() if call.is_out()]

    def limit_call(
        self, who: str, doing: str, function: Callable[..., object]
    ) -> Callable[..., Any]:
        """Wrap a third party's function that the agent's loop calls and waits for.

        Each call runs on a thread, and is abandoned after a minute or once the launch is to stop;
        until it returns, further calls fail at once. Exceptions pass unchanged: the caller knows
        for what it called, and the traceback names the plugin.
        """
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
                    _TIMEOUTS.get(doing, FACTORY_TIMEOUT),
                    self._is_unwanted,
                    passing=(Exception,),
                    advice="; fix what it waits for",
                )
            except NotReturnedError as error:
                left = error.call
                raise

        return limited

    def limit_methods(self, who: str, component: object, names: Collection[str]) -> None:
        """Wrap methods of a third party's component in `limit_call`, on the object itself.

        Skips methods inherited from the core, and objects whose attributes cannot be set.
        """
        for name in names:
            method = getattr(component, name, None)
            is_own = (getattr(method, "__module__", None) or "").partition(".")[0] != "plaunch"
            if method is not None and is_own:
                with contextlib.suppress(AttributeError):
                    setattr(component, name, self.limit_call(who, name, method))

    def wrap(
        self, plugin: Registration, hook: str, function: Callable[..., object]
    ) -> Callable[..., HookResult | None]:
        """Guard an implementation of a hook; keeps its argument names, which pluggy needs.

        The guarded function returns a `HookResult`, or None if the plugin returns None.
        """
        call = self._notify if hook in self._notifications else self._ask

        @functools.wraps(function)
        def guarded(*arguments: object) -> HookResult | None:
            own = [_own(plugin, argument) for argument in arguments]
            return call(plugin, hook, lambda: function(*own))

        return guarded

    def _ask(
        self, plugin: Registration, hook: str, function: Callable[[], object]
    ) -> HookResult | None:
        def evaluate() -> object:
            value = function()
            # Iterating runs the plugin's code too.
            return [*value] if isinstance(value, Iterator) else value

        value = bounded_call(
            plugin.who,
            hook,
            evaluate,
            _TIMEOUTS.get(hook, HOOK_TIMEOUT),
            self._is_unwanted,
            passing=(PlaunchError,),
            advice="; fix what it waits for, or block it with -p no:NAME",
        )
        return None if value is None else HookResult(plugin, value)

    def _notify(self, plugin: Registration, hook: str, function: Callable[[], object]) -> None:
        _, running = self._running.get(plugin.name, ("", None))
        if (plugin.name, hook) in self._switched_off or (running is not None and running.is_out()):
            return
        try:
            bounded_call(plugin.who, hook, function, NOTIFY_TIMEOUT)
            return
        except NotReturnedError as error:
            self._running[plugin.name] = plugin.who, error.call
            logger.warning(
                "%s; plaunch does not wait for it, calls none of its hooks until it returns, and "
                "does not call this hook again; the job goes on",
                error,
            )
        except PluginError as error:
            cause = error.__cause__ or error
            logger.warning(
                "%s failed in %s and is not called for it again; the job goes on: %s",
                plugin.who,
                hook,
                one_line(cause),
                exc_info=cause if self._with_traceback else None,
            )
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s was not notified (%s), and neither was any other plugin: %s",
                    plugin.who,
                    hook,
                    error,
                )
            return
        self._switched_off.add((plugin.name, hook))


def _own(plugin: Registration, argument: object) -> object:
    """Return an argument of a hook for this plugin: a context gets the plugin's own options."""
    if isinstance(argument, PluginContext):
        return replace(argument, options=plugin.options)
    return argument
