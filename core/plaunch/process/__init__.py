"""Workers as processes: starting, watching, stopping them, their streams and their failures.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._lazy import attach

if TYPE_CHECKING:
    from plaunch.process.binding import AffinityMode as AffinityMode
    from plaunch.process.binding import Binder as Binder
    from plaunch.process.binding import NumaOptions as NumaOptions
    from plaunch.process.binding import RankBinding as RankBinding
    from plaunch.process.binding import describe_bindings as describe_bindings
    from plaunch.process.context import PContext as PContext
    from plaunch.process.context import ProcessExit as ProcessExit
    from plaunch.process.context import RunProcsResult as RunProcsResult
    from plaunch.process.descriptor_limit import raise_descriptor_limit as raise_descriptor_limit
    from plaunch.process.error_handler import ErrorHandler as ErrorHandler
    from plaunch.process.error_handler import get_error_handler as get_error_handler
    from plaunch.process.error_handler import record as record
    from plaunch.process.failures import ChildFailedError as ChildFailedError
    from plaunch.process.failures import ProcessFailure as ProcessFailure
    from plaunch.process.handler import SubprocessHandler as SubprocessHandler
    from plaunch.process.handler import get_subprocess_handler as get_subprocess_handler
    from plaunch.process.layout import RunLayout as RunLayout
    from plaunch.process.logs import LogsDest as LogsDest
    from plaunch.process.logs import LogsSpecs as LogsSpecs
    from plaunch.process.multiprocess_context import MultiprocessContext as MultiprocessContext
    from plaunch.process.redirects import get_std_cm as get_std_cm
    from plaunch.process.redirects import redirect as redirect
    from plaunch.process.redirects import redirect_stderr as redirect_stderr
    from plaunch.process.redirects import redirect_stdout as redirect_stdout
    from plaunch.process.signals import SignalAction as SignalAction
    from plaunch.process.signals import SignalException as SignalException
    from plaunch.process.signals import SignalPolicy as SignalPolicy
    from plaunch.process.signals import parse_signals as parse_signals
    from plaunch.process.start import start_processes as start_processes
    from plaunch.process.std import Std as Std
    from plaunch.process.std import to_map as to_map
    from plaunch.process.subprocess_context import SubprocessContext as SubprocessContext
    from plaunch.process.tail import TailLog as TailLog

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".binding": "AffinityMode Binder NumaOptions RankBinding describe_bindings",
        ".context": "PContext ProcessExit RunProcsResult",
        ".descriptor_limit": "raise_descriptor_limit",
        ".error_handler": "ErrorHandler get_error_handler record",
        ".failures": "ChildFailedError ProcessFailure",
        ".handler": "SubprocessHandler get_subprocess_handler",
        ".layout": "RunLayout",
        ".logs": "LogsDest LogsSpecs",
        ".multiprocess_context": "MultiprocessContext",
        ".redirects": "get_std_cm redirect redirect_stderr redirect_stdout",
        ".signals": "SignalAction SignalException SignalPolicy parse_signals",
        ".start": "start_processes",
        ".std": "Std to_map",
        ".subprocess_context": "SubprocessContext",
        ".tail": "TailLog",
    },
)
