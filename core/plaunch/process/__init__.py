"""Workers as processes: starting, watching, stopping them, their streams and their failures.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch._names import is_python as is_python
    from plaunch.process.binding import Binder as Binder
    from plaunch.process.binding import Binding as Binding
    from plaunch.process.binding import default_binder as default_binder
    from plaunch.process.contexts.components import ContextComponents as ContextComponents
    from plaunch.process.contexts.components import Returns as Returns
    from plaunch.process.contexts.components import WorkerObserver as WorkerObserver
    from plaunch.process.contexts.components import WorkerResults as WorkerResults
    from plaunch.process.contexts.context import PContext as PContext
    from plaunch.process.contexts.context import RunProcsResult as RunProcsResult
    from plaunch.process.contexts.forked import become_worker as become_worker
    from plaunch.process.contexts.start import start_processes as start_processes
    from plaunch.process.contexts.subprocess_context import SubprocessContext as SubprocessContext
    from plaunch.process.contexts.subprocess_context import start_program as start_program
    from plaunch.process.contexts.supervised import SupervisedContext as SupervisedContext
    from plaunch.process.failures.child_failed import ChildFailedError as ChildFailedError
    from plaunch.process.failures.consequences import Consequence as Consequence
    from plaunch.process.failures.error_file import ErrorFileError as ErrorFileError
    from plaunch.process.failures.error_file import read_error_file as read_error_file
    from plaunch.process.failures.error_file import text_of_error as text_of_error
    from plaunch.process.failures.excerpts import shorten as shorten
    from plaunch.process.failures.failure import CONSEQUENCE_WINDOW as CONSEQUENCE_WINDOW
    from plaunch.process.failures.failure import EarlierAttempt as EarlierAttempt
    from plaunch.process.failures.failure import ProcessFailure as ProcessFailure
    from plaunch.process.failures.failure import describe_early_ends as describe_early_ends
    from plaunch.process.failures.failure import describe_exit as describe_exit
    from plaunch.process.failures.record import record as record
    from plaunch.process.failures.tracebacks import Raised as Raised
    from plaunch.process.kernel.descriptor_limit import (
        raise_descriptor_limit as raise_descriptor_limit,
    )
    from plaunch.process.kernel.handle import ProcessHandle as ProcessHandle
    from plaunch.process.kernel.holds import Held as Held
    from plaunch.process.kernel.holds import HoldWatch as HoldWatch
    from plaunch.process.kernel.holds import describe_hold as describe_hold
    from plaunch.process.kernel.proc import find_field as find_field
    from plaunch.process.kernel.proc import list_numbers as list_numbers
    from plaunch.process.kernel.proc import read_environ as read_environ
    from plaunch.process.kernel.proc import read_fds as read_fds
    from plaunch.process.kernel.proc import read_link as read_link
    from plaunch.process.kernel.proc import read_masks as read_masks
    from plaunch.process.kernel.proc import read_name as read_name
    from plaunch.process.kernel.proc import read_proc as read_proc
    from plaunch.process.kernel.proc import read_stack as read_stack
    from plaunch.process.kernel.proc import read_stat as read_stat
    from plaunch.process.kernel.proc import read_waiting_place as read_waiting_place
    from plaunch.process.kernel.processes import Process as Process
    from plaunch.process.kernel.processes import children_by_parent as children_by_parent
    from plaunch.process.kernel.processes import open_pidfd as open_pidfd
    from plaunch.process.kernel.processes import read_process as read_process
    from plaunch.process.kernel.processes import read_table as read_table
    from plaunch.process.kernel.processes import wait_for_end as wait_for_end
    from plaunch.process.kernel.watch import ExitWatch as ExitWatch
    from plaunch.process.launcher_variables import LAUNCHER_VARIABLE as LAUNCHER_VARIABLE
    from plaunch.process.launcher_variables import inheritable as inheritable
    from plaunch.process.starting import Starter as Starter
    from plaunch.process.stopping.reaping.job_tag import JOBS_VARIABLE as JOBS_VARIABLE
    from plaunch.process.stopping.signals import DEFAULT_SIGNALS as DEFAULT_SIGNALS
    from plaunch.process.stopping.signals import SignalAction as SignalAction
    from plaunch.process.stopping.signals import SignalException as SignalException
    from plaunch.process.stopping.signals import SignalPolicy as SignalPolicy
    from plaunch.process.stopping.signals import parse_signals as parse_signals
    from plaunch.process.streams.api import OutputCounts as OutputCounts
    from plaunch.process.streams.api import PatientStreams as PatientStreams
    from plaunch.process.streams.api import Sink as Sink
    from plaunch.process.streams.api import Streams as Streams
    from plaunch.process.streams.logs import LogsDest as LogsDest
    from plaunch.process.streams.logs import LogsSpecs as LogsSpecs
    from plaunch.process.streams.std import Std as Std
    from plaunch.process.streams.std import to_map as to_map
    from plaunch.process.streams.temporary import remove_temporary as remove_temporary
    from plaunch.process.worker_exit import ProcessExit as ProcessExit
    from plaunch.process.worker_exit import WorkerExit as WorkerExit
    from plaunch.process.worker_exit import WorkerInfo as WorkerInfo

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "plaunch._names": "is_python",
        ".binding": "Binder Binding default_binder",
        ".contexts.components": "ContextComponents Returns WorkerObserver WorkerResults",
        ".contexts.context": "PContext RunProcsResult",
        ".kernel.descriptor_limit": "raise_descriptor_limit",
        ".kernel.processes": (
            "Process children_by_parent open_pidfd read_process read_table wait_for_end"
        ),
        ".kernel.proc": (
            "find_field list_numbers read_environ read_fds read_link read_masks read_name "
            "read_proc read_stack read_stat read_waiting_place"
        ),
        ".kernel.holds": "Held HoldWatch describe_hold",
        ".starting": "Starter",
        ".launcher_variables": "LAUNCHER_VARIABLE inheritable",
        ".stopping.reaping.job_tag": "JOBS_VARIABLE",
        ".failures.error_file": "ErrorFileError read_error_file text_of_error",
        ".failures.record": "record",
        ".failures.consequences": "Consequence",
        ".failures.excerpts": "shorten",
        ".failures.tracebacks": "Raised",
        ".failures.child_failed": "ChildFailedError",
        ".failures.failure": (
            "CONSEQUENCE_WINDOW EarlierAttempt ProcessFailure describe_early_ends describe_exit"
        ),
        ".contexts.forked": "become_worker",
        ".streams.api": "OutputCounts PatientStreams Sink Streams",
        ".streams.logs": "LogsDest LogsSpecs",
        ".stopping.signals": (
            "DEFAULT_SIGNALS SignalAction SignalException SignalPolicy parse_signals"
        ),
        ".contexts.start": "start_processes",
        ".streams.std": "Std to_map",
        ".streams.temporary": "remove_temporary",
        ".contexts.subprocess_context": "SubprocessContext start_program",
        ".contexts.supervised": "SupervisedContext",
        ".kernel.handle": "ProcessHandle",
        ".worker_exit": "ProcessExit WorkerExit WorkerInfo",
        ".kernel.watch": "ExitWatch",
    },
)
