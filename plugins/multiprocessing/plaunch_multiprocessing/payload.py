"""The spawn payload of a function worker: its function, arguments and descriptors."""

from __future__ import annotations

import io
import os
import pickle
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess


class InheritedFd:
    """A descriptor that a worker inherits, with any start method."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing import reduction  # while a process is being started

        return _take_fd, (reduction.DupFd(self.fd),)


def _take_fd(duplicate: Any) -> InheritedFd:
    fd: int = duplicate.detach()
    os.set_inheritable(fd, False)  # not for processes that the worker starts
    return InheritedFd(fd)


class Call:
    """A function and its arguments, to be sent to a worker.

    They are pickled separately, so that the worker has its environment and streams before it
    imports the function's module, and can report a failed import. The bytes are in an anonymous
    file: with a pipe, the launcher would block on each worker in turn.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self._file = -1

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import ForkingPickler

        try:
            data = ForkingPickler.dumps((self._function, self._args))
        except Exception as error:
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise UsageError(
                f"the function {name!r} and its arguments cannot be sent to a new process: "
                f"{error}. Define the function at the top level of a module and pass values that "
                "can be pickled, or use the start method 'fork'"
            ) from error
        self._file = _anonymous_file(data)
        return PickledCall, (InheritedFd(self._file),)

    def close(self) -> None:
        """Close the launcher's copy of the file, once the worker has its own."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def load(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function and its arguments; called in a forked worker, which inherits them."""
        return self._function, self._args


class PickledCall:
    """A `Call` as unpickled in a worker that is not a fork of the launcher."""

    def __init__(self, file: InheritedFd) -> None:
        self._file = file

    def load(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Unpickle the function and its arguments, importing their modules; called once."""
        with open(self._file.fd, "rb") as file:
            call: tuple[Callable[..., Any], tuple[Any, ...]] = pickle.load(file)  # noqa: S301
        return call


def make_payload(popen: Any, process: BaseProcess) -> memoryview:
    """Pickle the preparation data and `process`, in the format of multiprocessing's workers.

    `popen` is multiprocessing's; it collects the descriptors that the worker inherits.
    """
    from multiprocessing import reduction, spawn
    from multiprocessing.context import set_spawning_popen

    payload = io.BytesIO()
    set_spawning_popen(popen)
    try:
        reduction.dump(spawn.get_preparation_data(process.name), payload)
        reduction.dump(process, payload)
    finally:
        set_spawning_popen(None)
    return payload.getbuffer()


def _anonymous_file(data: bytes | memoryview) -> int:
    """A descriptor of an unnamed file that contains `data`, positioned at its beginning."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("plaunch-call", os.MFD_CLOEXEC)
    else:
        import tempfile  # not on Linux

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
