"""Lets a worker exit with the code that comes through a pipe.

An interpreter imports `sitecustomize` when it is ready itself, just before it runs its program. The
folder of this one is first in the `PYTHONPATH` of workers for which `--inject` says `exit`. What a
worker starts does not inherit it.
"""

import _thread
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _exit_when_told(pipe: int) -> None:
    code, _, text = os.read(pipe, 4096).partition(b" ")
    os.write(2, text + b"\n")
    os._exit(int(code))


def _leave_path() -> None:
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    rest = [e for e in os.environ.get("PYTHONPATH", "").split(os.pathsep) if e != _FOLDER]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)


def _begin() -> None:
    path = os.environ.pop("PLAUNCH_CHAOS_EXIT", "")
    # A worker leads its session; what a shell as worker has started is another process.
    if path and os.getsid(0) == os.getpid():
        try:
            # For writing too, so that there is never an end of the file.
            pipe = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # the launcher has ended
        # Without `threading`, which would count it among the program's threads.
        _thread.start_new_thread(_exit_when_told, (pipe,))


_leave_path()
_begin()
# The one that this stands before, if there is one; `site` expects the error if there is none.
del sys.modules["sitecustomize"]
__import__("sitecustomize")
