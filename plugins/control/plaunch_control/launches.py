"""The launches of this host and user, found by their sockets, and which one a word means."""

from __future__ import annotations

import os

from plaunch.lazy import TYPE_CHECKING

from plaunch_control.door import remove_stale
from plaunch_control.folder import FolderError, candidates, check, read_name, sockets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_NAMED = 5  # launches in one message


class NoSuchJobError(Exception):
    """A word means no launch, or more than one; the message says so in one line."""


class Launch:
    """One launch: the path of its socket, and what the name of that says.

    Args:
        path: of the socket.
        run_id: the id of the job, or its beginning.
        is_whole: whether it is the whole id.
        pid: the process id of the launcher, in its own namespace.
    """

    def __init__(self, path: str, run_id: str, is_whole: bool, pid: int) -> None:
        self.path = path
        self.run_id = run_id
        self.is_whole = is_whole
        self.pid = pid

    def __str__(self) -> str:
        return f"{self.run_id}{'' if self.is_whole else '...'} (pid {self.pid})"


def find_launches(environ: Mapping[str, str], user: int) -> tuple[list[Launch], list[str]]:
    """The sockets of a user's launches, and what is wrong with folders that cannot be used."""
    found, problems = [], []
    for folder in candidates(environ, user):
        try:
            check(folder, user)
        except FileNotFoundError:
            continue
        except (FolderError, OSError) as error:
            problems.append(str(error))
            continue
        for path in sockets(folder):
            told = read_name(os.path.basename(path))
            if told is not None:
                found.append(Launch(path, *told))
    return found, problems


def choose(launches: list[Launch], word: str | None) -> Launch:
    """The launch that a run id, the beginning of one, or a pid means; without any, the only one.

    The sockets of killed launchers are removed.

    Raises:
        NoSuchJobError: it means none, or several.
    """
    if word is None:
        meant = launches
    else:
        meant = [launch for launch in launches if _is_exactly(launch, word)]
        meant = meant or [launch for launch in launches if _begins_with(launch, word)]
        meant = meant or [launch for launch in launches if str(launch.pid) == word]
    alive = [launch for launch in meant if not remove_stale(launch.path)]
    if not alive:
        raise NoSuchJobError(_describe_absence(word, meant, launches))
    if len(alive) > 1:
        why = "there are several launches" if word is None else f"{word!r} means several launches"
        raise NoSuchJobError(
            f"{why}: {_name(alive)}; give a run id, the beginning of one, or a pid"
        )
    return alive[0]


def find_foreign(word: str, user: int, proc: str = "/proc") -> str:
    """Whose launch a run id means, if it stands in the command line of another user's; or empty."""
    for name in os.listdir(proc):
        if not name.isdecimal():
            continue
        try:
            owner = os.stat(os.path.join(proc, name)).st_uid
            if owner == user:
                continue
            with open(os.path.join(proc, name, "cmdline"), "rb") as file:
                words = [os.fsdecode(one) for one in file.read(1 << 16).split(b"\0")]
        except OSError:
            continue
        if any("plaunch" in one for one in words[:4]) and any(
            one == word or one.endswith(f"={word}") for one in words[1:]
        ):
            return f"pid {name}, a launch of user {owner}"
    return ""


def _describe_absence(word: str | None, dead: list[Launch], launches: list[Launch]) -> str:
    """Why a word means no running launch; `dead` are those that it would mean."""
    found = "no launch of this user runs on this host"
    if word is not None:
        found = f"no running launch of this user on this host matches {word!r}"
    if dead:
        found += f"; {_name(dead)} {'has' if len(dead) == 1 else 'have'} ended"
    running = [one for one in launches if one not in dead and not remove_stale(one.path)]
    return f"{found}; running: {_name(running)}" if running else found


def _is_exactly(launch: Launch, word: str) -> bool:
    return launch.run_id == word if launch.is_whole else word.startswith(launch.run_id)


def _begins_with(launch: Launch, word: str) -> bool:
    return bool(word) and launch.run_id.startswith(word)


def _name(launches: Iterable[Launch]) -> str:
    names = [str(launch) for launch in launches]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
