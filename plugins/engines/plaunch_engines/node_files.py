"""The output of each node in a file of its own: `--node-output=DIR`."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from plaunch_engines.output import MergedOutput

_NOT_IN_NAMES = re.compile(r"[^\w.:@%\[\]-]")
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class NodeFiles:
    """Writes what each node writes to `DIR/JOB/NODE.log`, both streams as they arrive.

    A file that exists is continued, as by a second job with the same run id.

    Args:
        folder: `DIR/JOB`; see `folder_of`.
        output: writes the files on its thread.

    Raises:
        UsageError: the folder cannot be created.
    """

    def __init__(self, folder: str, output: MergedOutput) -> None:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--node-output: the folder {folder} cannot be created: {error.strerror}; name "
                "another one"
            ) from error
        self._folder = folder
        self._output = output
        self._files: dict[str, int] = {}  # by node; -1 if its file cannot be opened
        self._unfinished: dict[str, bool] = {}  # by node: whether a line of stderr is unfinished

    def write(self, node: str, text: bytes, *, is_error: bool) -> None:
        """Add text of a node; a line that the other stream has begun ends before it."""
        fd = self._open(node)
        if fd < 0 or not text:
            return
        begin = b"\n" if self._unfinished.pop(node, is_error) is not is_error else b""
        if not text.endswith(b"\n"):
            self._unfinished[node] = is_error
        self._output.write_file(fd, begin + text)

    def close(self) -> None:
        """Close the files, all of which are written; remove the folder if there are none."""
        for fd in self._files.values():
            if fd >= 0:
                os.close(fd)
        if not self._files:
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)

    def _open(self, node: str) -> int:
        if node not in self._files:
            path = os.path.join(self._folder, f"{_file_name(node)}.log")
            try:
                self._files[node] = os.open(path, _FLAGS, 0o666)
            except OSError as error:
                self._files[node] = -1
                self._output.say(
                    f"{path} cannot be written: {error.strerror}; the output of {node} is on the "
                    "console only (--node-output)",
                    "WARNING",
                )
            else:
                self._output.name_file(self._files[node], path)
        return self._files[node]


def folder_of(folder: str, job: str) -> str:
    """Return the folder for the files of a job, in a folder that the user names."""
    return os.path.join(folder, _file_name(job))


def _file_name(text: str) -> str:
    name = _NOT_IN_NAMES.sub("_", text)
    return f"_{name}" if name.startswith(".") else name
