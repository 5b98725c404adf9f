"""The folders, names and listening sockets of launches.

A socket is named `<run id>.<pid>.<random>`. The run id is percent-encoded, and truncated if the
path would exceed the system's limit for socket paths. Only the user of a launch can access the
folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from plaunch.lazy import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "PLAUNCH_RUNTIME_DIR"
MOST_BYTES = 107  # of the path of a Unix socket on Linux; 108 with the NUL
_LEAST_BYTES = 8  # of a truncated run id
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.+=@:,")
_CUT = "%"  # ends a truncated run id; elsewhere two digits follow it
_BACKLOG = 64
_MAX_SWEPT = 64  # sockets that one launch checks


class FolderError(Exception):
    """A folder cannot be used for sockets; the message says why."""


def candidates(environ: Mapping[str, str], user: int) -> list[str]:
    """The folders in which sockets of a user may be, the preferred one first.

    A launch uses the first usable one. `plaunchctl` searches all of them, because a launch under a
    scheduler may lack a variable that the user's shell has.
    """
    given = environ.get(VARIABLE)
    if given:
        return [os.path.abspath(given)]
    runtime = environ.get("XDG_RUNTIME_DIR")
    folders = [os.path.join(runtime, "plaunch")] if runtime and os.path.isabs(runtime) else []
    folders += [f"/run/user/{user}/plaunch", f"/tmp/plaunch-{user}"]  # noqa: S108 - see `check`
    return list(dict.fromkeys(folders))


def check(folder: str, user: int) -> None:
    """Check that a folder belongs to a user, and that no other user can access it.

    Raises:
        FolderError: it does not, or others can.
        FileNotFoundError: it does not exist.
        OSError: it cannot be read.
    """
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise FolderError(f"{folder!r} is not a folder")
    if found.st_uid != user:
        raise FolderError(f"{folder!r} belongs to user {found.st_uid}, not to {user}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise FolderError(f"{folder!r} has the mode {mode:04o}; only its owner may use it (0700)")


def create(folder: str, user: int) -> None:
    """Create a folder if it is missing, and check it.

    Raises:
        FolderError: it exists, but is not private to the user.
        OSError: it cannot be created.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    check(folder, user)


def socket_name(folder: str, run_id: str, pid: int) -> str:
    """A new name for the socket of a launch in `folder`.

    Raises:
        FolderError: the folder's path is too long for a socket.
    """
    end = f".{pid}.{os.urandom(3).hex()}"
    # Two more: the slash, and the dot before the temporary name.
    room = MOST_BYTES - len(os.fsencode(folder)) - len(end) - 2
    if room < _LEAST_BYTES:
        raise FolderError(
            f"{folder!r} is too long: the path of a socket has {MOST_BYTES} bytes at most"
        )
    return _quoted(run_id, room) + end


def read_name(name: str) -> tuple[str, bool, int] | None:
    """Return the run id in the name of a socket, whether it is complete, and the launcher's pid.

    Return None for any other name.
    """
    quoted, _, rest = name.rpartition(".")[0].rpartition(".")
    if not (quoted and rest.isascii() and rest.isdecimal()) or name.startswith("."):
        return None
    is_whole = not quoted.endswith(_CUT)
    return _unquoted(quoted.removesuffix(_CUT)), is_whole, int(rest)


def sockets(folder: str) -> Iterator[str]:
    """The paths in a folder that are named as launch sockets; none if it cannot be read."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if read_name(name) is not None:
            yield os.path.join(folder, name)


def _quoted(run_id: str, room: int) -> str:
    pieces: list[str] = []
    for char in run_id:
        is_plain = char in _PLAIN and (char != "." or bool(pieces))
        code = char.encode("utf-8", "surrogatepass")
        piece = char if is_plain else "".join(f"%{byte:02x}" for byte in code)
        if sum(map(len, pieces)) + len(piece) > room - len(_CUT):
            return "".join(pieces) + _CUT
        pieces.append(piece)
    return "".join(pieces)


def _unquoted(text: str) -> str:
    raw, rest = bytearray(), text.encode("utf-8", "replace")
    while rest:
        if rest[:1] == b"%":
            try:
                raw.append(int(rest[1:3], 16))
                rest = rest[3:]
                continue
            except ValueError:
                pass  # not written by plaunch
        raw += rest[:1]
        rest = rest[1:]
    return raw.decode("utf-8", "replace")


class LaunchSocket:
    """A listening socket and its path."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self.listener = listener
        self.path = path

    def remove(self) -> None:
        """Remove the path, so that clients no longer find the launch."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def open_socket(run_id: str, environ: Mapping[str, str], user: int) -> LaunchSocket:
    """Listen in the first usable folder, and remove sockets that dead launches left there.

    Args:
        run_id: the id of the job.
        environ: the environment variables.
        user: the user id of the launch.

    Raises:
        FolderError: no folder can be used; the message says why.
    """
    problems = []
    for folder in candidates(environ, user):
        try:
            create(folder, user)
            launch_socket = _listen(folder, run_id)
        except FolderError as error:
            problems.append(str(error))
            continue
        except OSError as error:
            problems.append(f"{folder} cannot be used: {error.strerror or error}")
            continue
        sweep(folder)
        return launch_socket
    raise FolderError("; ".join(problems))


def sweep(folder: str) -> None:
    """Remove the sockets in `folder` of launches that have ended."""
    for _, path in zip(range(_MAX_SWEPT), sockets(folder), strict=False):
        name = read_name(os.path.basename(path))
        # Connect only if no process has the pid, to disturb no running launch. In another pid
        # namespace the pid means nothing, so the connection decides.
        if name is not None and not os.path.exists(f"/proc/{name[2]}"):
            remove_stale(path)


def remove_stale(path: str) -> bool:
    """Remove a socket without a listener; return whether it was one. Does not block."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        is_stale = client.connect_ex(path) in (errno.ECONNREFUSED, errno.ENOENT)
    if is_stale:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return is_stale


def _listen(folder: str, run_id: str) -> LaunchSocket:
    name = socket_name(folder, run_id, os.getpid())
    # Rename it once it listens: a socket with a final name has a listener, or its launch is dead.
    first = os.path.join(folder, f".{name}")
    launch_socket = LaunchSocket(socket.socket(socket.AF_UNIX), os.path.join(folder, name))
    try:
        launch_socket.listener.bind(first)
        try:
            launch_socket.listener.listen(_BACKLOG)
            launch_socket.listener.setblocking(False)
            os.rename(first, launch_socket.path)
        except BaseException:
            os.unlink(first)
            raise
    except BaseException:
        launch_socket.listener.close()
        raise
    return launch_socket
