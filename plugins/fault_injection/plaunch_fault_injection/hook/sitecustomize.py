"""Makes a worker exit with the code that arrives through a pipe.

An interpreter imports `sitecustomize` just before it runs its program. The folder of this module is
first in the `PYTHONPATH` of workers with an `exit` fault of `--inject`. Processes that the worker
starts do not inherit it.
"""

import _thread
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _exit_on_message(pipe: int) -> None:
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
    # A worker leads its session; a Python started by a shell that is the worker does not.
    if path and os.getsid(0) == os.getpid():
        try:
            # Open for writing too, so that reading never reports the end of the file.
            pipe = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # the launcher has ended
        # Without `threading`, which would list it among the program's threads.
        _thread.start_new_thread(_exit_on_message, (pipe,))


_leave_path()
_begin()
# Import the user's own `sitecustomize`. If there is none, `site` handles the ImportError.
del sys.modules["sitecustomize"]
__import__("sitecustomize")
