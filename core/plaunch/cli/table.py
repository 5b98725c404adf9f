"""All options of one command line: the core's, and those that installed plugins declare."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.cli.arguments import Arguments
from plaunch.cli.options import GROUPS
from plaunch.errors import DuplicateNameError, PlaunchError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from plaunch.options import Option
    from plaunch.plugin.entry_points import EntryPoint
    from plaunch.plugin.options import PluginOptions

OURS = "plaunch itself"


class Group(NamedTuple):
    """Options that stand together in the help text."""

    title: str
    options: tuple[Option, ...]


class OptionTable:
    """The options; each name and attribute has one owner.

    An option that two plugins have belongs to neither; the core's options win.

    Args:
        plugins: what plugins declare.
        problems: what is wrong with options that are not among them.
        entries: what is installed, as it was found on the way.
    """

    def __init__(
        self,
        plugins: Iterable[PluginOptions] = (),
        problems: Iterable[str] = (),
        entries: list[EntryPoint] | None = None,
    ) -> None:
        self.entries = entries
        self.problems = list(problems)
        self.groups = [Group(title, options) for title, options in GROUPS]
        self.plugin_of: dict[str, str] = {}  # names of plugins by the attribute of their options
        self._clashes: dict[str, str] = {}
        plugins = list(plugins)
        ours = (word for _, options in GROUPS for option in options for word in _words(option))
        # What `Arguments` has beside options.
        reserved = (name for name in dir(Arguments(self, ())) if not name.startswith("_"))
        owners = {word: [OURS] for word in (*reserved, *ours)}
        for plugin in plugins:
            who = f"plugin {plugin.name!r} of {plugin.owner}"
            for word in dict.fromkeys(word for o in plugin.options for word in _words(o)):
                owners.setdefault(word, []).append(who)
        for plugin in plugins:
            kept = []
            for option in plugin.options:
                clash = next((word for word in _words(option) if len(owners[word]) > 1), None)
                if clash is None:
                    kept.append(option)
                    self.plugin_of[option.dest] = plugin.name
                else:
                    self._note_clash(option, owners[clash])
            if kept:
                self.groups.append(Group(plugin.name, tuple(kept)))
        self.options = tuple(option for group in self.groups for option in group.options)
        self._by_dest = {option.dest: option for option in self.options}

    def __iter__(self) -> Iterator[Option]:
        return iter(self.options)

    def find(self, dest: str) -> Option | None:
        """The option with this attribute, if there is one."""
        return self._by_dest.get(dest)

    def is_plugins(self, option: Option) -> bool:
        """Whether a plugin has declared an option."""
        return option.dest in self.plugin_of

    def clash(self, name: str) -> DuplicateNameError | None:
        """What is wrong with a name that several plugins claim, or that is the core's own."""
        text = self._clashes.get(name)
        return None if text is None else DuplicateNameError(text)

    def call(self, option: Option, path: str, *args: object) -> Any:
        """Call the function that an option names, as `module:function`.

        Raises:
            PluginError: it cannot be found, or failed with something that is not plaunch's.
        """
        module, _, name = path.partition(":")
        try:
            return getattr(importlib.import_module(module), name)(*args)
        except PlaunchError:
            raise
        except Exception as error:
            plugin = self.plugin_of.get(option.dest)
            if plugin is None:
                raise
            from plaunch.plugin.calls import one_line  # noqa: PLC0415 - errors only

            raise PluginError(
                f"{option.names[-1]} of plugin {plugin!r} failed: {one_line(error)}"
            ) from error

    def _note_clash(self, option: Option, owners: list[str]) -> None:
        text = (
            f"option {option.names[-1]} is declared by {' and by '.join(owners)}; remove one of "
            "them, or block one with -p no:NAME"
        )
        self.problems.append(text)
        if OURS not in owners:
            self._clashes.update(dict.fromkeys(option.names, text))


def _words(option: Option) -> tuple[str, ...]:
    """What only one option may have."""
    return (*option.names, option.dest, *option.variables)


def installed_table(words: Iterable[str], environ: Mapping[str, str]) -> OptionTable:
    """The table of what is installed here.

    Args:
        words: the arguments of `-p`.
        environ: the environment variables, which may name plugins, too.
    """
    from plaunch.plugin.entry_points import scan  # noqa: PLC0415
    from plaunch.plugin.options import find_options  # noqa: PLC0415
    from plaunch.plugin.registry import GROUPS as ENTRY_POINTS  # noqa: PLC0415
    from plaunch.plugin.selection import Selection  # noqa: PLC0415

    entries = scan(ENTRY_POINTS)
    return OptionTable(*find_options(entries, Selection(list(words), environ)), entries)
