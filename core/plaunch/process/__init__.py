"""Workers as processes: starting, watching, stopping them, their streams and their failures.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch._names import is_python as is_python
    from plaunch.errors import text_of_error as text_of_error
    from plaunch.process.cgroups import find_cpu_quota as find_cpu_quota
    from plaunch.process.cgroups import group_paths as group_paths
    from plaunch.process.child_failed import ChildFailedError as ChildFailedError
    from plaunch.process.children import ExitPoller as ExitPoller
    from plaunch.process.children import Popen as Popen
    from plaunch.process.children import ProcessHandle as ProcessHandle
    from plaunch.process.components import Binder as Binder
    from plaunch.process.components import Binding as Binding
    from plaunch.process.components import ContextComponents as ContextComponents
    from plaunch.process.components import ExitPlace as ExitPlace
    from plaunch.process.components import ExitRules as ExitRules
    from plaunch.process.components import Starter as Starter
    from plaunch.process.components import WorkerExit as WorkerExit
    from plaunch.process.components import WorkerInfo as WorkerInfo
    from plaunch.process.components import WorkerObserver as WorkerObserver
    from plaunch.process.components import WorkerResults as WorkerResults
    from plaunch.process.components import default_binder as default_binder
    from plaunch.process.consequences import Consequence as Consequence
    from plaunch.process.context import PContext as PContext
    from plaunch.process.error_file import ErrorFileError as ErrorFileError
    from plaunch.process.error_file import read_error_file as read_error_file
    from plaunch.process.error_file import record as record
    from plaunch.process.excerpts import shorten as shorten
    from plaunch.process.failure import CONSEQUENCE_WINDOW as CONSEQUENCE_WINDOW
    from plaunch.process.failure import EarlierAttempt as EarlierAttempt
    from plaunch.process.failure import ProcessFailure as ProcessFailure
    from plaunch.process.failure import describe_early_ends as describe_early_ends
    from plaunch.process.failure import describe_exit as describe_exit
    from plaunch.process.failure import describe_failure as describe_failure
    from plaunch.process.folders import why_not_writable as why_not_writable
    from plaunch.process.logs import LogsDest as LogsDest
    from plaunch.process.logs import LogsSpecs as LogsSpecs
    from plaunch.process.logs import Std as Std
    from plaunch.process.logs import find_run_dir as find_run_dir
    from plaunch.process.logs import read_dest as read_dest
    from plaunch.process.logs import remove_temporary as remove_temporary
    from plaunch.process.logs import to_map as to_map
    from plaunch.process.marks import JOBS_VARIABLE as JOBS_VARIABLE
    from plaunch.process.marks import LAUNCHER_VARIABLE as LAUNCHER_VARIABLE
    from plaunch.process.marks import RUN_ID_VARIABLE as RUN_ID_VARIABLE
    from plaunch.process.marks import inheritable as inheritable
    from plaunch.process.marks import without_secrets as without_secrets
    from plaunch.process.outcomes import RunProcsResult as RunProcsResult
    from plaunch.process.own_process import become_worker as become_worker
    from plaunch.process.own_process import (
        raise_descriptor_limit as raise_descriptor_limit,
    )
    from plaunch.process.proc import Process as Process
    from plaunch.process.proc import children_by_parent as children_by_parent
    from plaunch.process.proc import find_field as find_field
    from plaunch.process.proc import find_variable as find_variable
    from plaunch.process.proc import list_numbers as list_numbers
    from plaunch.process.proc import open_pidfd as open_pidfd
    from plaunch.process.proc import read_command as read_command
    from plaunch.process.proc import read_environ as read_environ
    from plaunch.process.proc import read_fds as read_fds
    from plaunch.process.proc import read_link as read_link
    from plaunch.process.proc import read_masks as read_masks
    from plaunch.process.proc import read_name as read_name
    from plaunch.process.proc import read_proc as read_proc
    from plaunch.process.proc import read_process as read_process
    from plaunch.process.proc import read_stack as read_stack
    from plaunch.process.proc import read_stat as read_stat
    from plaunch.process.proc import read_table as read_table
    from plaunch.process.proc import read_waiting_place as read_waiting_place
    from plaunch.process.proc import wait_for_end as wait_for_end
    from plaunch.process.signals import DEFAULT_SIGNALS as DEFAULT_SIGNALS
    from plaunch.process.signals import SignalAction as SignalAction
    from plaunch.process.signals import SignalException as SignalException
    from plaunch.process.signals import SignalPolicy as SignalPolicy
    from plaunch.process.signals import is_same_request as is_same_request
    from plaunch.process.signals import parse_signals as parse_signals
    from plaunch.process.start import SubprocessContext as SubprocessContext
    from plaunch.process.start import start_processes as start_processes
    from plaunch.process.start import start_program as start_program
    from plaunch.process.streams import PROMPT_HOLD as PROMPT_HOLD
    from plaunch.process.streams import PROMPT_HOLD_IN_LOG as PROMPT_HOLD_IN_LOG
    from plaunch.process.streams import OutputCounts as OutputCounts
    from plaunch.process.streams import PatientStreams as PatientStreams
    from plaunch.process.streams import Sink as Sink
    from plaunch.process.streams import Streams as Streams
    from plaunch.process.supervised import SupervisedContext as SupervisedContext
    from plaunch.process.tracebacks import Raised as Raised
    from plaunch.process.tracebacks import abort_in_output as abort_in_output
    from plaunch.process.watches import Held as Held
    from plaunch.process.watches import HeldProcesses as HeldProcesses
    from plaunch.process.watches import describe_hold as describe_hold

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "plaunch._names": "is_python",
        "plaunch.errors": "text_of_error",
        ".cgroups": "find_cpu_quota group_paths",
        ".child_failed": "ChildFailedError",
        ".children": "ExitPoller Popen ProcessHandle",
        ".components": (
            "Binder Binding ContextComponents ExitPlace ExitRules Starter "
            "WorkerExit WorkerInfo WorkerObserver WorkerResults default_binder"
        ),
        ".consequences": "Consequence",
        ".context": "PContext",
        ".error_file": "ErrorFileError read_error_file record",
        ".excerpts": "shorten",
        ".failure": (
            "CONSEQUENCE_WINDOW EarlierAttempt ProcessFailure describe_early_ends describe_exit "
            "describe_failure"
        ),
        ".folders": "why_not_writable",
        ".logs": "LogsDest LogsSpecs Std find_run_dir read_dest remove_temporary to_map",
        ".marks": "JOBS_VARIABLE LAUNCHER_VARIABLE RUN_ID_VARIABLE inheritable without_secrets",
        ".outcomes": "RunProcsResult",
        ".own_process": "become_worker raise_descriptor_limit",
        ".proc": (
            "Process children_by_parent find_field find_variable list_numbers "
            "open_pidfd read_command read_environ read_fds read_link read_masks read_name "
            "read_proc read_process read_stack read_stat read_table read_waiting_place "
            "wait_for_end"
        ),
        ".signals": (
            "DEFAULT_SIGNALS SignalAction SignalException SignalPolicy is_same_request "
            "parse_signals"
        ),
        ".start": "SubprocessContext start_processes start_program",
        ".streams": "PROMPT_HOLD PROMPT_HOLD_IN_LOG OutputCounts PatientStreams Sink Streams",
        ".supervised": "SupervisedContext",
        ".tracebacks": "Raised abort_in_output",
        ".watches": "Held HeldProcesses describe_hold",
    },
)
