"""Plugins' code, called so that it cannot hold the launch, and is named for what it does to it.

Code that is quick, such as what offers names, runs where it is called, within `blaming`. What may
take its time runs on a thread of its own that is waited for: `bounded_call`. Streams' `finish`,
which may take as long as it shows something, is the one exception.
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
        has_returned = call.wait(seconds, is_unwanted)
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
