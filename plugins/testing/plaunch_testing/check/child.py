"""Calls a function in a child process, which sends its result over a pipe.

The exit code is not enough: a plugin can end its process with any exit code, including 0.
"""

from __future__ import annotations

import multiprocessing
import traceback
from typing import TYPE_CHECKING, NamedTuple

from plaunch import errors
from plaunch.errors import PlaunchError, PluginError
from plaunch.process import describe_exit

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    Note = Callable[[str], None]

_END_TIMEOUT = 2.0  # seconds for the child to end after its result, before it gets SIGKILL


class _Step(NamedTuple):
    """What the child does next, for the error if it ends there."""

    text: str


class _Done(NamedTuple):
    result: int


class _Failed(NamedTuple):
    """An exception in the child; `name` is its type in `plaunch.errors`, or empty."""

    name: str
    message: str
    traceback: str


class _ChildTraceback(Exception):  # noqa: N818 - only a cause, as in concurrent.futures
    """The traceback of an exception in the child; PLAUNCH_DEBUG=1 shows it."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def call_in_child(what: str, function: Callable[[Note], int]) -> int:
    """Call `function` in a forked child process, and return its result.

    Args:
        what: what the child does, for messages.
        function: called with a function that records what the child does next.

    Raises:
        PlaunchError: `function` raised it.
        PluginError: `function` raised another exception, or the child ended before it returned.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(sender, function), name="plaunch-check")
    child.start()
    sender.close()
    step = "before the first one"
    try:
        while True:
            message = receiver.recv()
            if not isinstance(message, _Step):
                break
            step = message.text
    except EOFError:
        child.join()
        code = child.exitcode or 0
        raise PluginError(
            f"{what}: the process of the checks ended early, {step}, with {describe_exit(code)}. "
            "The plugin, or a library that it uses, has ended it (os._exit) or crashed; a plugin "
            "must report an error by raising an exception"
        ) from None
    finally:
        receiver.close()
        child.join(_END_TIMEOUT)
        if child.is_alive():
            child.kill()
            child.join()
    if isinstance(message, _Done):
        return message.result
    error_type = getattr(errors, message.name, PluginError)
    raise error_type(message.message) from _ChildTraceback(message.traceback)


def _run(sender: Connection, function: Callable[[Note], int]) -> None:
    try:
        answer: _Done | _Failed = _Done(function(lambda text: sender.send(_Step(text))))
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        name = type(error).__name__ if isinstance(error, PlaunchError) else ""
        text = str(error) if name else f"{type(error).__name__}: {error}"
        answer = _Failed(name, text, traceback.format_exc())
    sender.send(answer)
