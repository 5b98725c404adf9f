"""What the user says about plugins: `-p NAME` and `-p no:NAME`, also in `PLAUNCH_PLUGINS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import UsageError
from plaunch.plugin.entry_points import normalise
from plaunch.plugin.registry import FIRST_PARTY, LIFECYCLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLUGINS_VARIABLE = "PLAUNCH_PLUGINS"
AUTOLOAD_VARIABLE = "PLAUNCH_DISABLE_PLUGIN_AUTOLOAD"
_BLOCK = "no:"


class Word(NamedTuple):
    """One word about plugins: a `NAME`, a `KIND:NAME` or a `DISTRIBUTION:NAME`.

    `source` is how the user said it, for messages.
    """

    text: str
    source: str

    def means(self, kind: str, name: str, distribution: str = "") -> bool:
        """Whether it means the plugin `name` of a kind, from a distribution (its key)."""
        if self.text == name:
            return True
        owner, colon, bare = self.text.partition(":")
        if not colon or bare != name:
            return False
        return owner == kind or bool(distribution and normalise(owner) == distribution)


class Selection:
    """All choices about plugins in one launch. A later word overrules an earlier equal one.

    Kinds are given by their names, distributions by their keys.

    Args:
        arguments: the arguments of `-p`, in order; they overrule the environment.
        environ: the environment variables.

    Raises:
        UsageError: a word is empty.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self.loads: list[Word] = []
        self.blocks: list[Word] = []
        # As with pytest's variable of this kind, any value but "0" turns loading off.
        self.autoload = environ.get(AUTOLOAD_VARIABLE, "0") in ("", "0")
        for text in environ.get(PLUGINS_VARIABLE, "").replace(",", " ").split():
            self._add(text, f"{text!r} in {PLUGINS_VARIABLE}")
        for text in arguments:
            self._add(text.strip(), f"-p {text if text.isprintable() else repr(text)}")

    def blocker(self, kind: str, name: str, distribution: str = "") -> str:
        """How the user has said that a plugin is blocked; empty if nobody has."""
        means = (word.source for word in self.blocks if word.means(kind, name, distribution))
        return next(means, "")

    def reason_against(self, kind: str, name: str, distribution: str) -> str:
        """What leaves an installed plugin out: who blocks it, or `AUTOLOAD_VARIABLE`; or empty."""
        blocker = self.blocker(kind, name, distribution)
        is_on = self.autoload or (distribution == FIRST_PARTY and kind != LIFECYCLE.name)
        if blocker or is_on or any(word.means(kind, name, distribution) for word in self.loads):
            return blocker
        return AUTOLOAD_VARIABLE

    def _add(self, text: str, source: str) -> None:
        blocks = text.startswith(_BLOCK)
        word = Word(text[len(_BLOCK) :] if blocks else text, source)
        if not word.text:
            raise UsageError(f"{source} names no plugin; write -p NAME or -p no:NAME")
        self.loads = [other for other in self.loads if other.text != word.text]
        self.blocks = [other for other in self.blocks if other.text != word.text]
        (self.blocks if blocks else self.loads).append(word)
