"""Grouping ranks by their stacks, and naming the groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from plaunch.numbers import format_ranks, name_ranks

from plaunch_hang.stacks.holds import count_debugger, find_hold
from plaunch_hang.stacks.stack import CodeOrigin, StackFrame
from plaunch_hang.stacks.waiting import ChildKind, find_busy_child, waits_for_peers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plaunch_hang.stacks.stack import ProcessStacks

MOST_FRAMES = 40  # of a group, to limit the size of a node's groups
_MOST_NAME = 100  # characters
_MOST_PATH = 200
_MOST_CALLERS = 4
_MOST_HOSTS = 2  # hosts that are named
_STUCK = "state D"  # in an uninterruptible sleep, for example in a read from a lost file system
_NO_STACK = "runs no Python code"  # the interpreter starts or has ended, or only C code is left


class StackGroup(NamedTuple):
    """Ranks whose main threads are at the same place.

    Args:
        ranks: global ranks by host.
        frames: the frames, innermost first: those of libraries without line numbers, consecutive
            ones of Python's own modules as one. Empty if there is no stack.
        state: the state reported by the kernel, if there is no stack.
        reason: why there is no stack.
        child: the frames of the child process that they wait for, if any.
        kind: the kind of that process.
        held: what holds them, so that they cannot run; empty if nothing does.
    """

    ranks: Mapping[str, tuple[int, ...]]
    frames: tuple[StackFrame, ...] = ()
    state: str = ""
    reason: str = ""
    child: tuple[StackFrame, ...] = ()
    kind: ChildKind | None = None
    held: str = ""

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.ranks.values()))

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """The ranks of all hosts, sorted."""
        return tuple(sorted(rank for ranks in self.ranks.values() for rank in ranks))

    @property
    def order(self) -> tuple[int, int, tuple[int, ...]]:
        """The sort key of groups; the first one is most often the cause.

        Ranks that are held come first, then those that wait for a child process. Ranks that wait
        for other ranks come late, and those without a stack last, unless they are stuck in the
        kernel. Of the others, the smallest group comes first.
        """
        if self.held:
            likely = 0
        elif self.child:
            likely = 1
        elif waits_for_peers(self.frames):
            likely = 3
        elif self.frames or self.state.startswith(_STUCK):
            likely = 2
        else:
            likely = 4
        return likely, self.size, self.all_ranks


def group(
    stacks: Mapping[str, Mapping[int, ProcessStacks]], held: Mapping[int, object] | None = None
) -> list[StackGroup]:
    """Group ranks whose main threads are on the same lines of the user's code.

    Args:
        stacks: the stacks, by host and global rank.
        held: what holds workers that cannot run, by global rank; in addition to what their stacks
            show.

    Returns:
        The groups in the order of `StackGroup.order`, the most likely cause first.
    """
    return merge(
        _with_hold(_group_of(host, rank, process), (held or {}).get(rank))
        for host, by_rank in stacks.items()
        for rank, process in by_rank.items()
    )


def _with_hold(item: StackGroup, held: object) -> StackGroup:
    return item if held is None else item._replace(held=str(held))


def merge(groups: Iterable[StackGroup]) -> list[StackGroup]:
    """Combine groups, such as those of several nodes, in the order of `StackGroup.order`."""
    found: dict[tuple[object, ...], dict[str, set[int]]] = {}
    for item in groups:
        ranks = found.setdefault(item[1:], {})
        for host, own in item.ranks.items():
            ranks.setdefault(host, set()).update(own)
    merged = [
        StackGroup({host: tuple(sorted(ranks[host])) for host in sorted(ranks)}, *what)  # type: ignore[arg-type]
        for what, ranks in found.items()
    ]
    return sorted(merged, key=lambda item: item.order)


def fold(frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """Reduce a stack to what is equal for ranks at the same place.

    Line numbers are kept only in the user's code. Python's own modules often wait in a loop, so
    their inner calls are left out, and so are their calls before the program begins.
    """
    folded: list[StackFrame] = []
    previous: CodeOrigin | None = CodeOrigin.PYTHON if _has_program(frames) else None
    for frame in reversed(frames):
        origin = frame.origin
        if origin is CodeOrigin.PYTHON and previous is CodeOrigin.PYTHON:
            continue
        previous = origin
        line = frame.line if origin is CodeOrigin.USER else 0
        folded.append(StackFrame(frame.function[:_MOST_NAME], frame.file[-_MOST_PATH:], line))
    return tuple(folded[: -MOST_FRAMES - 1 : -1])


def _has_program(frames: Iterable[StackFrame]) -> bool:
    return any(frame.origin is not CodeOrigin.PYTHON for frame in frames)


def _group_of(host: str, rank: int, process: ProcessStacks) -> StackGroup:
    ranks = {host: (rank,)}
    main, hold = process.main, find_hold(process)
    kernel = str(process.kernel or "")
    if main is not None:
        frames = fold(main.frames[count_debugger(main.frames) :])
        state = "" if frames else ", ".join(filter(None, (_NO_STACK, kernel)))
        child, kind = find_busy_child(process) or ((), None)
        return StackGroup(ranks, frames, state, "", fold(child), kind, hold)
    return StackGroup(ranks, (), kernel, process.reason or "it could not be read", held=hold)


def format_groups(groups: Sequence[StackGroup], *, most: int = 20) -> list[str]:
    """Format groups as lines, and add a line for each reason why a stack is unknown.

    Args:
        groups: the groups, as returned by `group` and `merge`.
        most: the number of groups to show; a further line counts the others.
    """
    hosts = {host for item in groups for host in item.ranks}
    places = _name_places(groups[:most])
    lines = [
        f"{_format_ranks(item, hosts)} {place}"
        for item, place in zip(groups[:most], places, strict=True)
    ]
    if groups[most:]:
        rest = sum(item.size for item in groups[most:])
        lines.append(f"and {rest} ranks in {len(groups) - most} more groups")
    unknown: dict[str, list[int]] = {}
    for item in groups:
        if item.reason:
            unknown.setdefault(item.reason, []).extend(item.all_ranks)
    for reason, ranks in unknown.items():
        lines.append(f"the stack of {name_ranks(ranks)} is unknown: {reason}")
    return lines


def _format_ranks(item: StackGroup, hosts: set[str]) -> str:
    ranks = item.all_ranks
    text = f"{item.size} rank{'' if item.size == 1 else 's'}: {_spaced(ranks)}"
    if len(item.ranks) <= _MOST_HOSTS and len(item.ranks) < len(hosts):
        text += f" ({', '.join(item.ranks)})"
    return text


def _spaced(ranks: Iterable[int]) -> str:
    return format_ranks(ranks).replace(",", ", ")


def _name_places(groups: Sequence[StackGroup]) -> list[str]:
    """A text for each group, with as many callers as needed to make them unique."""
    places = [_name_place(item, 0) for item in groups]
    for callers in range(1, _MOST_CALLERS + 1):
        if len(set(places)) == len(places):
            break
        places = [
            _name_place(item, callers) if places.count(place) > 1 else place
            for item, place in zip(groups, places, strict=True)
        ]
    return places


def _name_place(item: StackGroup, callers: int) -> str:
    place = name_frames(item.frames, callers) if item.frames else item.state or "nothing is known"
    if item.held:
        return f"{place}, {item.held}"
    if item.kind is None or not item.frames:
        return place
    ranks = name_ranks(item.all_ranks)
    who = f"{ranks} waits" if item.size == 1 else f"{ranks} wait"
    child = name_frames(item.child, callers)
    # Show the caller in the user's code instead of the library function that waits.
    users = [frame for frame in item.frames if not frame.is_library]
    place = " <- ".join(map(str, users[: callers + 1])) or place
    return f"{child}, {item.kind.describe(ranks, item.size)}; {who} in {place}"


def name_frames(frames: Sequence[StackFrame], callers: int = 0) -> str:
    """Name where folded frames are: the library's function, and the user's with its callers."""
    users = [frame for frame in frames if not frame.is_library]
    if not users:
        return " <- ".join(map(_name_library, frames[: callers + 1]))
    inner = frames[: frames.index(users[0])]
    library = next((frame for frame in inner if frame.origin is CodeOrigin.INSTALLED), None)
    if library is None and inner:
        library = inner[-1]
    words = [] if library is None else [library.function]
    return " <- ".join([*words, *map(str, users[: callers + 1])])


def _name_library(frame: StackFrame) -> str:
    """A function of Python's own modules as `threading._shutdown`, others with their file."""
    if frame.origin is not CodeOrigin.PYTHON or not frame.module_path:
        return str(frame)
    module = frame.module_path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"{module}.{frame.function}"
