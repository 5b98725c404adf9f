"""Chosen components that the agent's loop calls, so that those of third parties cannot hold it."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from plaunch.errors import PluginError
from plaunch.plugin.calls import NotReturnedError, bounded_call, one_line
from plaunch.process.stopping.signals import SignalAction
from plaunch.process.streams.api import OutputCounts, is_shown, leave_rest, show_rest
from plaunch.process.streams.logs import LogsSpecs, has_sinks, open_streams
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Iterable, Sequence

    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.process.streams.api import Streams
    from plaunch.process.streams.logs import LogsDest

logger = logging.getLogger("plaunch")

POLICY_BOUND = 1.0  # seconds that a signal policy may think, about one signal or about all
START_BOUND = 60.0  # seconds that one may take for a start of the workers, or to clear up
HURRIED_CLOSE = 10.0  # seconds for clearing up when a signal has ended the job


class BoundedPolicy:
    """A signal policy that is called on a thread, and never again after it was too slow.

    A signal that it says nothing about stops the job.

    Args:
        policy: the policy.
        who: the plugin, for messages.
    """

    def __init__(self, policy: SignalPolicy, who: str) -> None:
        self.who = who
        self._policy = policy
        self._listed: Collection[signal.Signals] | None = None
        self._is_off = False

    def signals(self) -> Collection[signal.Signals]:
        """What the policy says when it is first asked.

        Raises:
            PluginError: it has failed, or not answered in time.
        """
        if self._listed is None:
            listed: list[signal.Signals] = bounded_call(
                self.who, "signals", lambda: list(self._policy.signals()), POLICY_BOUND
            )
            self._listed = listed
        return self._listed

    def action(self, signum: signal.Signals) -> SignalAction:
        """What the policy says, or STOP; raises what the policy raises.

        Raises:
            PluginError: it ends the process.
        """
        if self._is_off:
            return SignalAction.STOP
        ask = partial(self._policy.action, signum)
        try:
            action: SignalAction = bounded_call(
                self.who, "action", ask, POLICY_BOUND, passing=(Exception,)
            )
        except NotReturnedError:
            self._is_off = True
            logger.warning(
                "%s did not say within %g s what %s means; plaunch does not ask it again, and "
                "every signal that it lists stops the job",
                self.who,
                POLICY_BOUND,
                signum.name,
            )
            return SignalAction.STOP
        return action


def bounded_method(
    who: str, doing: str, method: Callable[..., Any], is_unwanted: Callable[[], bool]
) -> Callable[..., Any]:
    """What a component does, on a thread that is waited for as long as is sensible.

    It raises what the component raises, and `PluginError` if that has not returned in time, or by
    the time that the launch was to stop, or ends the process.

    Args:
        who: the plugin, for messages.
        doing: what messages call the method.
        method: the method.
        is_unwanted: asked while it takes its time: whether the launch is to stop.
    """

    def bounded(*args: Any, **kwargs: Any) -> Any:
        call = partial(method, *args, **kwargs)
        return bounded_call(who, doing, call, START_BOUND, is_unwanted, passing=(Exception,))

    return bounded


class Bounded:
    """A component some methods of which are bounded.

    Args:
        component: the component; everything else is taken from it as it is.
        who: the plugin, for messages.
        is_unwanted: asked while it takes its time: whether the launch is to stop.
        methods: the names of the methods.
    """

    def __init__(
        self, component: Any, who: str, is_unwanted: Callable[[], bool], methods: Iterable[str]
    ) -> None:
        self._component = component
        self._who = who
        self._is_unwanted = is_unwanted
        for name in methods:
            method = getattr(component, name)
            setattr(self, name, bounded_method(who, name, method, is_unwanted))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._component, name)


class BoundedLogsSpecs(Bounded):
    """A logs spec that is bounded; see there for the arguments."""

    def __init__(self, specs: Any, who: str, is_unwanted: Callable[[], bool]) -> None:
        super().__init__(specs, who, is_unwanted, ["create_run_dir"])

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """What the logs spec says.

        Raises:
            PluginError: as for any method, or it returns something else.
        """
        reify = bounded_method(self._who, "reify", self._component.reify, self._is_unwanted)
        dest: LogsDest = reify(envs)
        if not hasattr(dest, "error_files"):
            raise PluginError(f"{self._who} returned {dest!r} from reify, which is not a LogsDest")
        return dest

    def open_streams(self, dest: LogsDest, nprocs: int, **options: Any) -> Streams:
        """What the logs spec opens, bounded as well; plaunch's own if it opens none.

        Raises:
            PluginError: as for any method, or it returns something else.
        """
        if has_sinks(self._component):
            options["open_sink"] = bounded_method(
                self._who, "open_sink", self._component.open_sink, self._is_unwanted
            )
        open_them = partial(open_streams, self._component, dest, nprocs, **options)
        its = getattr(self._component, "open_streams", None)
        if its is None or getattr(its, "__func__", None) is LogsSpecs.open_streams:
            return open_them()  # which nothing holds
        streams = bounded_method(self._who, "open_streams", open_them, self._is_unwanted)()
        if not hasattr(streams, "child_fds"):
            raise PluginError(
                f"{self._who} returned {streams!r} from open_streams, which carries no streams"
            )
        return cast("Streams", BoundedStreams(streams, self._who, self._is_unwanted))

    def close(self, succeeded: bool) -> None:
        """What the logs spec does.

        Raises:
            PluginError: it has failed, or not returned in time.
        """
        hurried = time.monotonic() + HURRIED_CLOSE
        bounded_call(
            self._who,
            "close",
            partial(self._component.close, succeeded),
            START_BOUND,
            lambda: time.monotonic() > hurried and self._is_unwanted(),
            advice="; plaunch does not wait for it any longer",
            warns=False,
        )


class BoundedStreams(Bounded):
    """Streams that a logs spec opens, bounded; once the workers run, they cannot harm the job."""

    def __init__(self, streams: Any, who: str, is_unwanted: Callable[[], bool]) -> None:
        super().__init__(streams, who, is_unwanted, {"child_fds", "start"})
        self._is_finished = False

    def escalate(self) -> None:
        """Let them hurry; whatever is wrong with them, a stop comes to its SIGKILL."""
        with contextlib.suppress(Exception):
            self._component.escalate()

    def finish(self) -> None:
        """Let them finish, once, which may take as long as something is shown now and then."""
        if self._is_finished:
            return
        self._is_finished = True
        begun = time.monotonic()

        def is_stuck() -> bool:
            bound = HURRIED_CLOSE if self._is_unwanted() else START_BOUND
            shown = begun
            with contextlib.suppress(Exception):
                shown = max(begun, self._component.last_shown())
            return time.monotonic() - shown >= bound

        # Signals are not looked after: the agent's loop goes on meanwhile, and may change them.
        try:
            call = BoundedCall("plugin-finish", self._component.finish)
        except RuntimeError as error:  # no more threads
            logger.warning(
                "%s cannot finish (%s); workers' output may be missing", self._who, error
            )
            return
        if not call.wait(math.inf, is_stuck):
            logger.warning(
                "%s has not returned from finish; workers' output may be missing", self._who
            )
        elif call.error is not None:
            logger.warning("%s failed in finish: %s", self._who, one_line(call.error))

    def leave_rest(self) -> None:
        """Let `finish` leave what a slow console does not take, if they can."""
        with contextlib.suppress(Exception):
            leave_rest(self._component)

    def show_rest(self, timeout: float) -> None:
        """Let them wait for a slow console; the agent does not wait for that after a signal."""
        try:
            show_rest(self._component, timeout)
        except Exception as error:  # noqa: BLE001 - their defect must not change the job's result
            logger.warning("%s failed in show_rest: %s", self._who, one_line(error))

    def counts(self) -> OutputCounts:
        """What they count; nothing if they fail."""
        with contextlib.suppress(Exception):
            return OutputCounts(*self._component.counts())
        return OutputCounts()

    def last_lines(self, local_rank: int) -> Sequence[str]:
        """What they say, or nothing."""

        def say() -> list[str]:
            return [str(line) for line in self._component.last_lines(local_rank)]

        try:
            lines: Sequence[str] = bounded_call(
                self._who, "last_lines", say, START_BOUND, self._is_unwanted, warns=False
            )
        except PluginError as error:
            logger.warning("%s", error)
            return ()
        return lines

    def is_shown(self, local_rank: int) -> bool:
        """What they say; that they show nothing if they fail."""
        with contextlib.suppress(Exception):
            return is_shown(self._component, local_rank)
        return False
