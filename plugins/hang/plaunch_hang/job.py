"""Whether the workers of a whole job move: decided from what its nodes tell each other.

Nothing is told while workers move, but once at the begin of a round, so that the others know that
this node watches. A node whose workers are still tells where they are, again and again, and reads
what the others tell. Only times that have passed are told, so clocks may differ.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, NamedTuple

from plaunch_hang.options import ACTIONS
from plaunch_hang.records import NAME, NodeState, Told, dump_told, load_told
from plaunch_hang.stacks import merge
from plaunch_hang.watch import LOOKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from plaunch.agent import Control

    from plaunch_hang.stacks import Group

logger = logging.getLogger("plaunch")

_PATIENCE = (
    LOOKS // 4
)  # looks at the others, until one that tells nothing counts as one that never will
_TURN = 3  # looks that a node has to report a hang before the next one does
_PACE = 0.05  # seconds between two looks at the others for each of them, at least


class Kind(enum.Enum):
    """What a node that is still may conclude from the others."""

    WAIT = "wait"  # nothing yet
    HANG = "hang"  # no worker of the job moves
    ALONE = "alone"  # those of other nodes do
    HELD = "held"  # some of another node cannot move
    UNKNOWN = "unknown"  # some nodes tell nothing


class Outlook(NamedTuple):
    """What a node that is still concludes.

    Args:
        kind: the conclusion.
        silent: for UNKNOWN: the nodes that tell nothing; all but this one if the nodes of this job
            cannot tell each other anything.
        early: for HANG: which workers have ended with exit code 0, in words, of each such node.
        held: for HELD: what holds which workers, in words, of each such node.
        seconds: for HANG: for how long no worker of the job has moved.
        groups: for HANG: where all of them are, the likely cause first.
        action: for HANG: what is to follow.
        teller: for HANG: the host of the node that tells it.
        rank: for HANG: the worker of this node that stands for it.
        is_first: for HANG: whether this node tells it.
        is_turn: for HANG: whether this node is to report it now.
    """

    kind: Kind
    silent: tuple[int, ...] = ()
    held: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    seconds: float = 0.0
    groups: Sequence[Group] = ()
    action: str = ACTIONS[0]
    teller: str = ""
    rank: int = -1
    is_first: bool = False
    is_turn: bool = False


WAIT = Outlook(Kind.WAIT)


class JobWatch:
    """One node's part in one round of several nodes.

    Args:
        control: publishes texts, and has those of the other nodes.
        me: what this node has told first; its round and its rank stay.
        nodes: how many there are.
    """

    def __init__(self, control: Control, me: Told, nodes: int) -> None:
        self._control = control
        self._me = me
        self._nodes = nodes
        self._has_told = False
        self._next = 0.0  # when the others are looked at again
        self._waits = 0  # looks at the others while this node is still
        self._agreed = 0  # those at which nobody moved
        self._numbers: dict[int, int] = {}  # what the others had told when nobody moved first
        self.settings: set[tuple[float, str]] = {(me.timeout, me.action)}  # of all nodes seen

    @property
    def round(self) -> int:
        """The round."""
        return self._me.round

    def tell(
        self,
        now: float,
        state: NodeState,
        seconds: float = 0.0,
        groups: Sequence[Group] = (),
        held: str = "",
        early: str = "",
    ) -> bool:
        """Tell the others what the workers of this node do, if it is new or should be told again.

        Returns:
            Whether it is time to look at what they tell.
        """
        is_new = state is not self._me.state or not self._has_told
        if is_new:
            self._waits = self._agreed = 0
            self._numbers = {}
        elif state is NodeState.MOVES or now < self._next:
            return False  # what is told again may have been lost
        self._next = now + self._nodes * _PACE
        self._has_told = True
        self._me = self._me._replace(
            state=state,
            number=self._me.number + 1,
            seconds=seconds,
            groups=groups,
            held=held,
            early=early,
        )
        try:
            self._control.publish(NAME, dump_told(self._me, self._nodes))
        except ValueError as error:
            logger.warning("the other nodes are told nothing of a hang: %s", error)
        return state is NodeState.STILL

    def find_silent(self) -> tuple[int, ...]:
        """The nodes that tell nothing, as far as is known.

        All others are, if nodes cannot tell each other anything.
        """
        told = self._read()
        return () if told is None else self._silent(told)

    def judge(self, ranks: Collection[int]) -> Outlook:
        """Look at what the others tell, while this node is still.

        Args:
            ranks: its workers.
        """
        told = self._read()
        self._waits += 1
        is_late = self._waits > _PATIENCE
        if told is None:
            return WAIT
        states = {one.state for one in told.values()}
        if NodeState.HELD in states:
            self._waits = self._agreed = 0
            held = [one.held for one in told.values() if one.state is NodeState.HELD and one.held]
            return Outlook(Kind.HELD, held=tuple(sorted(held)))
        silent = self._silent(told)
        if NodeState.MOVES in states:
            self._forget()
            return Outlook(Kind.ALONE)
        if not silent and states <= {NodeState.STILL, NodeState.OVER}:
            # What one has told may be old: each must have told so again since all were still.
            stale = self._stale(told)
            if not stale:
                return self._hang(list(told.values()), ranks)
            return Outlook(Kind.UNKNOWN, stale) if is_late else WAIT
        self._forget()
        return Outlook(Kind.UNKNOWN, silent) if silent and is_late else WAIT

    def _forget(self) -> None:
        self._agreed = 0
        self._numbers = {}

    def _read(self) -> dict[int, Told] | None:
        """What the nodes have told in this round, by rank; None if the store has not answered."""
        texts = self._control.published(NAME)
        if texts is not None and not texts:
            return None
        told = dict(self._select((texts or {}).values()))
        told[self._me.node] = self._me
        self.settings.update((one.timeout, one.action) for one in told.values())
        return told

    def _select(self, texts: Iterable[str]) -> Iterable[tuple[int, Told]]:
        for text in texts:
            try:
                told = load_told(text)
            except ValueError as error:
                logger.debug("what a node tells of hangs is left out: %s", error)
                continue
            if told.round == self.round and told.node < self._nodes:
                yield told.node, told

    def _silent(self, told: Mapping[int, Told]) -> tuple[int, ...]:
        return tuple(node for node in range(self._nodes) if node not in told)

    def _stale(self, told: Mapping[int, Told]) -> tuple[int, ...]:
        """The nodes that have told nothing since all were seen to be still."""
        still = {n: one.number for n, one in told.items() if one.state is NodeState.STILL}
        if still.keys() != self._numbers.keys():
            self._numbers, self._agreed = still, 0
        return tuple(
            node
            for node, number in still.items()
            if number == self._numbers[node] and node != self._me.node
        )

    def _hang(self, told: Sequence[Told], ranks: Collection[int]) -> Outlook:
        groups = merge(item for one in told for item in one.groups)
        # Ranks with a stack stand for a hang rather than those of which nothing is known.
        chosen = [rank for item in groups if item.frames for rank in item.all_ranks]
        chosen += [rank for item in groups if not item.frames for rank in item.all_ranks]
        owners = {rank: one.node for one in told for item in one.groups for rank in item.all_ranks}
        still = {one.node: one for one in told if one.state is NodeState.STILL}
        order = list(dict.fromkeys([*(owners[rank] for rank in chosen), *sorted(still)]))
        me = self._me.node
        own = [rank for rank in chosen if owners[rank] == me and rank in ranks]
        place = order.index(me)
        looks, self._agreed = self._agreed, self._agreed + 1
        return Outlook(
            Kind.HANG,
            seconds=min(one.seconds for one in still.values()),
            groups=groups,
            early=tuple(one.early for one in told if one.early),
            action=min((one.action for one in told), key=ACTIONS.index),
            teller=next(one.host for one in told if one.node == order[0]),
            rank=own[0] if own else min(ranks),
            is_first=place == 0,
            is_turn=looks == place * _TURN,
        )
