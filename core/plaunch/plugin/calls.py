"""Plugins' code, called so that it cannot hold the launch, and is named for what it does to it.

Each call runs on a thread of its own, with a limit on the wait: `bounded_call`, and `call_hook` for
hooks with a result. Streams' `finish` is the one exception: it may take as long as it shows
something. What plaunch's own plugins offer runs where it is called, within `blaming`.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.defaults import KEEP_SIGNALS, load_default
from plaunch.errors import PluginError, SignalException
from plaunch.process.failures.error_file import text_of_error
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from plaunch.plugin.loaded import Registration

logger = logging.getLogger("plaunch")

HOOK_BOUND = 10.0  # seconds that one implementation of a hook with a result is waited for
FACTORY_BOUND = 60.0  # seconds that what the name of a component gives is waited for
NOTICE = 10.0  # seconds after which a call that is waited for longer is named


class Implementation(NamedTuple):
    """What one plugin has of a hook."""

    hook: str
    plugin: Registration
    function: Callable[..., Any]
    argnames: Sequence[str]

    @property
    def who(self) -> str:
        """How messages call the plugin."""
        return self.plugin.who

    def call(self, arguments: Mapping[str, object]) -> Any:
        """Call it with those of the hook's arguments that it wants."""
        return self.function(*[arguments[name] for name in self.argnames])


class NotReturnedError(PluginError):
    """A call of a plugin's code that is not waited for any longer."""

    def __init__(self, text: str, call: BoundedCall) -> None:
        super().__init__(text)
        self.call = call


def one_line(error: BaseException) -> str:
    """An exception as one line: its type and what it says."""
    text = " ".join(text_of_error(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def keeping_signals(who: str, doing: str) -> AbstractContextManager[None]:
    """Run a third party's code; what it changes about signals is put back, and said.

    Args:
        who: the plugin, for messages.
        doing: what it does meanwhile, such as the name of a hook.
    """
    keep: Callable[[str, str], AbstractContextManager[None]] = load_default(KEEP_SIGNALS)
    return keep(who, doing)


@contextlib.contextmanager
def blaming(
    failure: str,
    error_type: type[PluginError] = PluginError,
    *,
    passing: tuple[type[Exception], ...] = (),
    advice: Callable[[BaseException], str] = lambda error: "",
) -> Iterator[None]:
    """Run a plugin's code where it is called; whatever it raises becomes an error that names it.

    Also SystemExit, which must not end the launch as if all were well. Ctrl-C and signals pass.

    Args:
        failure: the beginning of the message: which plugin, and what has failed.
        error_type: the type of the error.
        passing: what else is raised as it is.
        advice: the end of the message, by what was raised.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SignalException, *passing)):
            raise
        raise error_type(f"{failure}: {one_line(error)}{advice(error)}") from error


def bounded_call(
    who: str,
    doing: str,
    function: Callable[[], object],
    seconds: float,
    is_unwanted: Callable[[], bool] = lambda: False,
    *,
    passing: tuple[type[Exception], ...] = (),
    advice: str = "",
    warns: bool = True,
) -> Any:
    """Call a plugin's code on a thread, which is left behind if it does not return in time.

    Args:
        who: the plugin, for messages.
        doing: what is called, such as the name of a hook.
        function: calls it.
        seconds: how long it is waited for.
        is_unwanted: asked meanwhile: whether the launch is to stop.
        passing: what is raised as it is if the plugin raises it.
        advice: the end of the message if it does not return.
        warns: whether to log what nobody looks at otherwise: that the launch did not wait for it.

    Raises:
        NotReturnedError: it has not returned.
        PluginError: it has failed, or called `sys.exit`.
    """
    with keeping_signals(who, doing):
        call = BoundedCall(f"plugin-{doing}", function)
        has_returned = call.wait(min(seconds, NOTICE), is_unwanted)
        if not has_returned and seconds > NOTICE and not is_unwanted():
            logger.warning(
                "%s has not returned from %s within %g s; the launcher waits up to %g s for it",
                who,
                doing,
                NOTICE,
                seconds,
            )
            has_returned = call.wait(seconds - NOTICE, is_unwanted)
    if has_returned:
        if call.error is None:
            return call.result
        if isinstance(call.error, passing):
            raise call.error
        raise PluginError(f"{who} failed in {doing}: {one_line(call.error)}") from call.error
    if is_unwanted():
        # Nobody looks at why the workers did not start: they are not to start.
        text = f"{who} had not returned from {doing} when the launch had to stop"
        if warns:
            logger.warning("%s", text)
        raise NotReturnedError(text, call)
    raise NotReturnedError(
        f"{who} has not returned from {doing} within {seconds:g} s{advice}", call
    )


def call_hook(
    item: Implementation,
    arguments: Mapping[str, object],
    is_unwanted: Callable[[], bool] = lambda: False,
    *,
    passing: tuple[type[Exception], ...] = (),
    take: Callable[[Any], Any] = lambda answer: answer,
) -> Any:
    """Call an implementation of a hook that offers or contributes something; return its result.

    Args:
        item: the implementation.
        arguments: those of the hook.
        is_unwanted: asked meanwhile: whether the launch is to stop.
        passing: what is raised as it is if the plugin raises it.
        take: makes of the result what is returned, where that runs code of the plugin as well.

    Raises:
        PluginError: it has failed, or has not returned within `HOOK_BOUND`.
    """
    return bounded_call(
        item.who,
        item.hook,
        lambda: take(item.call(arguments)),
        HOOK_BOUND,
        is_unwanted,
        passing=passing,
        advice="; fix what it waits for, or block it with -p no:NAME",
    )
