"""Workers as processes, their streams and their failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.plugin import LOGS_SPECS, PluginManager
from plaunch.process import ChildFailedError as ChildFailedError
from plaunch.process import LogsDest as LogsDest
from plaunch.process import LogsSpecs as LogsSpecs  # noqa: TC002 - is exported
from plaunch.process import ProcessFailure as ProcessFailure
from plaunch.process import RunProcsResult as RunProcsResult
from plaunch.process import SignalException as SignalException
from plaunch.process import Std as Std
from plaunch.process import SubprocessContext as SubprocessContext
from plaunch.process import start_processes as start_processes
from plaunch.process import to_map as to_map
from plaunch_multiprocessing import MultiprocessContext as MultiprocessContext

from plaunch_torchrun.error_handler import ErrorHandler as ErrorHandler
from plaunch_torchrun.error_handler import get_error_handler as get_error_handler
from plaunch_torchrun.error_handler import record as record
from plaunch_torchrun.redirects import get_libc as get_libc
from plaunch_torchrun.redirects import get_std_cm as get_std_cm
from plaunch_torchrun.redirects import redirect as redirect
from plaunch_torchrun.redirects import redirect_stderr as redirect_stderr
from plaunch_torchrun.redirects import redirect_stdout as redirect_stdout
from plaunch_torchrun.subprocess_handler import SubprocessHandler as SubprocessHandler
from plaunch_torchrun.subprocess_handler import get_subprocess_handler as get_subprocess_handler
from plaunch_torchrun.tail_log import TailLog as TailLog
from plaunch_torchrun.tail_log import tail_logfile as tail_logfile
from plaunch_torchrun.tailing_context import TailingContext

PContext = TailingContext

if TYPE_CHECKING:
    DefaultLogsSpecs = LogsSpecs  # loads on first use


def __getattr__(name: str) -> object:
    if name != "DefaultLogsSpecs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return PluginManager.create(first_party_only=True).get(LOGS_SPECS, "default")
