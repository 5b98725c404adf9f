"""What the user says about plugins: `-p NAME` and `-p no:NAME`, also in `PLAUNCH_PLUGINS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.errors import UsageError
from plaunch.plugin.entry_points import normalise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.plugin.registry import Kind

PLUGINS_VARIABLE = "PLAUNCH_PLUGINS"
AUTOLOAD_VARIABLE = "PLAUNCH_DISABLE_PLUGIN_AUTOLOAD"
_BLOCK = "no:"


class Word(NamedTuple):
    """One word about plugins: a `NAME`, a `KIND:NAME` or a `DISTRIBUTION:NAME`.

    `source` is how the user said it, for messages.
    """

    text: str
    source: str

    def matches(self, kind: Kind[Any], name: str, distribution: str | None = None) -> bool:
        """Whether the word means the plugin `name` of `kind`, from a distribution (its key)."""
        return self.means(kind.name, name, distribution)

    def means(self, kind: str, name: str, distribution: str | None = None) -> bool:
        """As `matches`, with the kind's name."""
        if self.text == name:
            return True
        owner, colon, bare = self.text.partition(":")
        if not colon or bare != name:
            return False
        return owner == kind or (distribution is not None and normalise(owner) == distribution)


class Selection:
    """All that is said about plugins in one launch. A later word overrules an earlier equal one.

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

    def blocker(self, kind: Kind[Any], name: str, distribution: str | None = None) -> Word | None:
        """The word that blocks a plugin, or None."""
        return next((w for w in self.blocks if w.matches(kind, name, distribution)), None)

    def names(self, kind: Kind[Any], name: str, distribution: str | None = None) -> bool:
        """Whether a word asks to load a plugin."""
        return any(word.matches(kind, name, distribution) for word in self.loads)

    def _add(self, text: str, source: str) -> None:
        blocks = text.startswith(_BLOCK)
        word = Word(text[len(_BLOCK) :] if blocks else text, source)
        if not word.text:
            raise UsageError(f"{source} names no plugin; write -p NAME or -p no:NAME")
        self.loads = [other for other in self.loads if other.text != word.text]
        self.blocks = [other for other in self.blocks if other.text != word.text]
        (self.blocks if blocks else self.loads).append(word)
