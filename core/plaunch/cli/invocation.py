"""A parsed command line, as commands such as `--doctor` and a launch use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.cli.parser import installed_table
from plaunch.cli.stdout import STDOUT
from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TextIO

    from plaunch.cli.parser import Arguments, OptionTable
    from plaunch.config import LaunchConfig
    from plaunch.errors import PlaunchError
    from plaunch.launch.prepare import LaunchComponents
    from plaunch.options import Option
    from plaunch.plugin.manager import PluginManager

SILENT = ("help", "version")  # they log nothing, and importing `logging` takes longer than they do


class Invocation:
    """A command line, and the objects that are created from it.

    Args:
        args: the parsed options; None if they cannot be parsed.
        table: all options.
        plugins: plugins passed in code.
        error: why the options cannot be parsed.
    """

    def __init__(
        self,
        args: Arguments | None,
        table: OptionTable,
        plugins: Sequence[object] = (),
        error: PlaunchError | None = None,
    ) -> None:
        self.args = args
        self.table = table
        self.plugins = plugins
        self.error = error
        # The values by attribute; empty if they cannot be parsed.
        self.options: Mapping[str, Any] = {} if args is None else vars(args)

    @property
    def stream(self) -> TextIO:
        """Stdout; what other code prints goes to stderr meanwhile."""
        return STDOUT.stream

    def write(self, text: str) -> None:
        """Write to stdout and flush.

        Raises:
            PlaunchError: stdout cannot be written.
        """
        STDOUT.write(text)

    def parsed(self) -> Arguments:
        """Return the options.

        Raises:
            UsageError: they cannot be parsed.
        """
        if self.args is None:
            raise self.error or UsageError("the options cannot be parsed")
        return self.args

    def command(self) -> tuple[Callable[..., Any] | str, list[str]]:
        """Return each worker's entrypoint and its arguments.

        Raises:
            UsageError: there is no script, or it cannot be started.
        """
        from plaunch.cli.settings import worker_command  # not for --help

        return worker_command(self.parsed())

    def create_manager(self) -> PluginManager:
        """Create the plugin manager, which loads the plugins of every launch.

        Raises:
            PlaunchError: one of them cannot be loaded.
        """
        from plaunch.plugin.manager import PluginManager  # after usage errors

        return PluginManager.create(
            self.plugins, words=self.options.get("plugins", ()), entries=self.table.entries
        )

    def configure(self, manager: PluginManager) -> tuple[LaunchConfig, str]:
        """Create the settings from the options; also return what plugins have filled in.

        Raises:
            PlaunchError: an option is invalid, or a plugin fails.
        """
        from plaunch.cli.settings import config_from_args, fill_in

        args = self.parsed()
        with manager.naming_plugins():
            filled_in = fill_in(args, manager)
            return config_from_args(args, manager), filled_in

    def prepare(self, manager: PluginManager, config: LaunchConfig) -> LaunchComponents:
        """Create the components of the launch, without starting anything.

        Raises:
            PlaunchError: the launch would not start.
        """
        from plaunch.launch.prepare import check_rendezvous, prepare  # commands only

        with manager.naming_plugins():
            components = prepare(config, manager)
            check_rendezvous(config, manager, components.restart_policy)
            return components

    def name_sources(self, text: str) -> str:
        """Return a message about options with the variables or files that set them."""
        return text if self.args is None else self.args.name_sources(text)


def find_command(args: Arguments) -> Option | None:
    """Return the given option that has a command, such as `--doctor`, or None.

    Raises:
        UsageError: there are several, and none of them is `--help` or `--version`.
    """
    given = [o for o in args.table if o.command and args.is_on_command_line(o.dest)]
    for option in given:
        if option.dest in SILENT:
            return option
    if len(given) > 1:
        names = " and ".join(option.names[-1] for option in given)
        raise UsageError(f"{names} are given, and each runs instead of a launch; give one of them")
    return given[0] if given else None


def find_command_despite_errors(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[Option, OptionTable] | None:
    """Return the command to run although the options cannot be parsed, or None."""
    table = installed_table((), environ)
    names = {name: o for o in table if o.command and o.takes_errors for name in o.names}
    for word in argv:
        if word in names:
            return names[word], table
        if word == "--" or word.endswith(".py"):
            return None
    return None
