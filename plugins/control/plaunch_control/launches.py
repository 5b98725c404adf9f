"""Finding the launches of this host and user by their sockets, and selecting one."""

from __future__ import annotations

import os

from plaunch.lazy import TYPE_CHECKING

from plaunch_control.folder import FolderError, candidates, check, read_name, remove_stale, sockets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_NAMED = 5  # launches in one message


class NoSuchJobError(Exception):
    """A JOB matches no launch, or several; the message says so in one line."""


class Launch:
    """One launch, as found by the name of its socket.

    Args:
        path: the path of the socket.
        run_id: the id of the job, or its beginning.
        is_whole: whether the id is complete.
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
    """Find the launches of a user; also return the problems of folders that cannot be used."""
    found, problems = [], []
    for folder in candidates(environ, user):
        try:
            check(folder, user)
        except FileNotFoundError:
            continue
        except FolderError as error:
            problems.append(str(error))
            continue
        except OSError as error:
            problems.append(f"{folder} cannot be used: {error.strerror or error}")
            continue
        for path in sockets(folder):
            name = read_name(os.path.basename(path))
            if name is not None:
                found.append(Launch(path, *name))
    return found, problems


def choose(launches: list[Launch], word: str | None) -> Launch:
    """Select the launch with a run id, the beginning of one, or a pid; if None, the only one.

    The sockets of killed launchers are removed.

    Raises:
        NoSuchJobError: no launch matches, or several do.
    """
    if word is None:
        matching = launches
    else:
        matching = [launch for launch in launches if _is_exactly(launch, word)]
        matching = matching or [launch for launch in launches if _begins_with(launch, word)]
        matching = matching or [launch for launch in launches if str(launch.pid) == word]
    alive = [launch for launch in matching if not remove_stale(launch.path)]
    if not alive:
        raise NoSuchJobError(_describe_absence(word, matching, launches))
    if len(alive) > 1:
        why = "there are several launches" if word is None else f"{word!r} matches several launches"
        raise NoSuchJobError(
            f"{why}: {_name(alive)}; give a run id, the beginning of one, or a pid"
        )
    return alive[0]


def find_foreign(word: str, user: int, proc: str = "/proc") -> str:
    """Describe a launch of another user whose command line has this run id; empty if none has."""
    from plaunch.process import list_numbers, read_command  # rare

    for pid in list_numbers(proc=proc):
        try:
            owner = os.stat(f"{proc}/{pid}").st_uid
        except OSError:
            continue
        if owner == user:
            continue
        words = read_command(pid, proc)
        if any("plaunch" in one for one in words[:4]) and any(
            one == word or one.endswith(f"={word}") for one in words[1:]
        ):
            return f"pid {pid}, a launch of user {owner}"
    return ""


def _describe_absence(word: str | None, dead: list[Launch], launches: list[Launch]) -> str:
    """Why no running launch matches; `dead` are matching launches that have ended."""
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
