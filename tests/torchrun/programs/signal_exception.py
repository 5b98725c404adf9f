"""SignalException, ProcessFailure and ChildFailedError made by a program."""

import signal

from api import caught, multiprocessing, show

error = multiprocessing.SignalException("text", signal.SIGTERM)
show(value=error.sigval, text=str(error), derived=isinstance(error, Exception))
failure = multiprocessing.ProcessFailure(1, 999, -9, "none")
show(name=failure.signal_name(), message=failure.message, rank=failure.local_rank)
other = multiprocessing.ProcessFailure(0, 998, 3, "none")
show(exit=[other.signal_name(), other.message, other.exitcode])
child = multiprocessing.ChildFailedError("job", {0: other, 1: failure})
show(
    first=child.get_first_failure()[0] in (0, 1),
    name_=child.name,
    empty=caught(multiprocessing.ChildFailedError, "job", {}),
)
