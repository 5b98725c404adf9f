"""Plugins' code, called so that it cannot hold the launch, and is named for what it does to it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.errors import PluginError, SignalException
from plaunch.process.failures.error_file import text_of_error
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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


def one_line(error: BaseException) -> str:
    """An exception as one line: its type and what it says."""
    text = " ".join(text_of_error(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def keeping_signals(who: str, doing: str) -> AbstractContextManager[None]:
    """Run a third party's code; see `plaunch.plugin.dispositions`."""
    from plaunch.plugin.dispositions import kept_dispositions  # noqa: PLC0415 - theirs only

    return kept_dispositions(who, doing)


def bounded_call(
    who: str,
    doing: str,
    function: Callable[[], object],
    seconds: float,
    is_unwanted: Callable[[], bool] = lambda: False,
    *,
    passing: type[Exception] | tuple[()] = (),
    advice: str = "",
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

    Raises:
        PluginError: it has failed, or not returned.
    """
    with keeping_signals(who, doing):
        call = BoundedCall(f"plugin-{doing}", function)
        has_returned = call.wait(seconds, is_unwanted)
    if has_returned:
        return result_of(call, who, doing, passing)
    if is_unwanted():
        # Nobody looks at why the workers did not start: they are not to start.
        text = f"{who} had not returned from {doing} when the launch had to stop"
        logger.warning("%s", text)
        raise PluginError(text)
    raise PluginError(f"{who} has not returned from {doing} within {seconds:g} s{advice}")


def result_of(
    call: BoundedCall, who: str, doing: str, passing: type[Exception] | tuple[()] = ()
) -> Any:
    """What a call has returned; raises what is `passing` if the plugin has raised that.

    Raises:
        PluginError: it has raised something else, such as SystemExit, which must not end the
            launch as if all were well.
    """
    if call.error is None:
        return call.result
    if isinstance(call.error, passing):
        raise call.error
    raise PluginError(f"{who} failed in {doing}: {one_line(call.error)}") from call.error


def offers_of(item: Implementation) -> Mapping[str, object]:
    """What an implementation of a hook that offers names returns.

    Raises:
        PluginError: it fails, or returns something else.
    """
    ours = contextlib.nullcontext()
    try:
        with ours if item.plugin.is_ours else keeping_signals(item.who, item.hook):
            offers = item.call({})
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        raise PluginError(f"{item.who} failed in {item.hook}: {one_line(error)}") from error
    if not (isinstance(offers, Mapping) and all(isinstance(name, str) for name in offers)):
        raise PluginError(
            f"{item.who} returned {offers!r} from {item.hook}, which is not a mapping of names"
        )
    return offers
