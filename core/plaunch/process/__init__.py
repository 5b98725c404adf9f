"""Workers as processes: starting, watching, stopping them, their streams and their failures.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._lazy import attach

if TYPE_CHECKING:
    from plaunch.process.binding import Binder as Binder
    from plaunch.process.binding import Binding as Binding
    from plaunch.process.contexts.context import PContext as PContext
    from plaunch.process.contexts.context import ProcessExit as ProcessExit
    from plaunch.process.contexts.context import RunProcsResult as RunProcsResult
    from plaunch.process.contexts.handler import SubprocessHandler as SubprocessHandler
    from plaunch.process.contexts.handler import get_subprocess_handler as get_subprocess_handler
    from plaunch.process.contexts.multiprocess_context import (
        MultiprocessContext as MultiprocessContext,
    )
    from plaunch.process.contexts.start import start_processes as start_processes
    from plaunch.process.contexts.subprocess_context import SubprocessContext as SubprocessContext
    from plaunch.process.failures.error_handler import ErrorHandler as ErrorHandler
    from plaunch.process.failures.error_handler import get_error_handler as get_error_handler
    from plaunch.process.failures.error_handler import record as record
    from plaunch.process.failures.failure import ChildFailedError as ChildFailedError
    from plaunch.process.failures.failure import ProcessFailure as ProcessFailure
    from plaunch.process.kernel.descriptor_limit import (
        raise_descriptor_limit as raise_descriptor_limit,
    )
    from plaunch.process.stopping.signals import SignalAction as SignalAction
    from plaunch.process.stopping.signals import SignalException as SignalException
    from plaunch.process.stopping.signals import SignalPolicy as SignalPolicy
    from plaunch.process.stopping.signals import parse_signals as parse_signals
    from plaunch.process.streams.layout import RunLayout as RunLayout
    from plaunch.process.streams.logs import LogsDest as LogsDest
    from plaunch.process.streams.logs import LogsSpecs as LogsSpecs
    from plaunch.process.streams.redirects import get_std_cm as get_std_cm
    from plaunch.process.streams.redirects import redirect as redirect
    from plaunch.process.streams.redirects import redirect_stderr as redirect_stderr
    from plaunch.process.streams.redirects import redirect_stdout as redirect_stdout
    from plaunch.process.streams.std import Std as Std
    from plaunch.process.streams.std import to_map as to_map
    from plaunch.process.streams.tail import TailLog as TailLog

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".binding": "Binder Binding",
        ".contexts.context": "PContext ProcessExit RunProcsResult",
        ".kernel.descriptor_limit": "raise_descriptor_limit",
        ".failures.error_handler": "ErrorHandler get_error_handler record",
        ".failures.failure": "ChildFailedError ProcessFailure",
        ".contexts.handler": "SubprocessHandler get_subprocess_handler",
        ".streams.layout": "RunLayout",
        ".streams.logs": "LogsDest LogsSpecs",
        ".contexts.multiprocess_context": "MultiprocessContext",
        ".streams.redirects": "get_std_cm redirect redirect_stderr redirect_stdout",
        ".stopping.signals": "SignalAction SignalException SignalPolicy parse_signals",
        ".contexts.start": "start_processes",
        ".streams.std": "Std to_map",
        ".contexts.subprocess_context": "SubprocessContext",
        ".streams.tail": "TailLog",
    },
)
