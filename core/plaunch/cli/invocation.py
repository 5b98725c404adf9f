"""A command line that asks for something else than a launch, as what it asks for sees it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plaunch.cli.parser import COMMAND_LINE, as_given
from plaunch.cli.stdout import STDOUT
from plaunch.cli.table import installed_table
from plaunch.errors import PlaunchError, PluginError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from typing import TextIO

    from plaunch.cli.table import OptionTable
    from plaunch.config import LaunchConfig
    from plaunch.options import Option
    from plaunch.plugin.manager import PluginManager


class Invocation:
    """What the user has typed, and what can be made of it.

    Args:
        args: the parsed options; None if they cannot be parsed.
        table: all options.
        environ: the environment variables.
        plugins: plugins passed in code.
        error: why the options cannot be parsed.
    """

    def __init__(
        self,
        args: argparse.Namespace | None,
        table: OptionTable,
        environ: Mapping[str, str],
        plugins: Sequence[object] = (),
        error: UsageError | None = None,
    ) -> None:
        self.args = args
        self.table = table
        self.environ = environ
        self.plugins = plugins
        self.error = error
        # The values by attribute; none if they cannot be parsed.
        self.options: Mapping[str, Any] = {} if args is None else vars(args)

    @property
    def stream(self) -> TextIO:
        """Stdout, to which nobody else writes meanwhile."""
        return STDOUT.stream

    def write(self, text: str) -> None:
        """Write to stdout, at once.

        Raises:
            PlaunchError: it takes no text.
        """
        STDOUT.write(text)

    def parsed(self) -> argparse.Namespace:
        """The options.

        Raises:
            UsageError: they cannot be parsed.
        """
        if self.args is None:
            raise self.error or UsageError("the options cannot be parsed")
        return self.args

    def create_manager(self) -> PluginManager:
        """Find the plugins, and load those of every launch.

        Raises:
            PlaunchError: one of them cannot be used.
        """
        from plaunch.plugin.manager import PluginManager  # noqa: PLC0415 - not for a list

        return PluginManager.create(
            self.plugins, words=self.options.get("plugins", ()), entries=self.table.entries
        )

    def check_command(self) -> None:
        """See whether there is a script, if one is named, and whether it can be started.

        Raises:
            UsageError: it cannot.
        """
        from plaunch.cli.command import worker_command  # noqa: PLC0415 - as above

        if self.args is not None and self.args.training_script is not None:
            worker_command(self.args)

    def configure(self, manager: PluginManager) -> tuple[LaunchConfig, str]:
        """Make the settings of the options, and say what a scheduler has filled in.

        Raises:
            PlaunchError: they cannot be made.
        """
        from plaunch.cli.allocation import allocate  # noqa: PLC0415 - as above
        from plaunch.cli.settings import config_from_args  # noqa: PLC0415

        args = self.parsed()
        taken = allocate(args, manager)
        return config_from_args(args, manager), taken

    def load_chosen(self, manager: PluginManager, config: LaunchConfig) -> None:
        """Load the plugins that the settings name.

        Raises:
            PlaunchError: one of them cannot be loaded, or is not there.
        """
        load_chosen(manager, config)

    def as_given(self, text: str) -> str:
        """A message about options, with the variable or file that has given them."""
        return text if self.args is None else as_given(text, self.args)


def load_chosen(manager: PluginManager, config: LaunchConfig) -> None:
    """Load the plugins that settings name; see `Invocation.load_chosen`."""
    from plaunch.plugin.event_handlers import find_event_handlers  # noqa: PLC0415 - as above
    from plaunch.plugin.registry import RENDEZVOUS, SIGNAL_POLICIES  # noqa: PLC0415

    manager.get(RENDEZVOUS, config.rdzv_backend)
    find_event_handlers(manager, config.event_log_handler, config.event_conf)
    manager.get(SIGNAL_POLICIES, config.signal_policy)
    manager.use_options(config.options)


def given_command(args: argparse.Namespace) -> Option | None:
    """The option that asks for something else than a launch, if one is given."""
    commands = (option for option in args.table if option.command)
    return next((o for o in commands if args.sources[o.dest] == COMMAND_LINE), None)


def command_in_spite(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[Option, OptionTable] | None:
    """The command before the script that is wanted although the rest cannot be parsed."""
    table = installed_table((), environ)
    names = {name: o for o in table if o.command and o.takes_errors for name in o.names}
    for word in argv:
        if word in names:
            return names[word], table
        if word == "--" or word.endswith(".py"):
            return None
    return None


def call_command(option: Option, invocation: Invocation) -> int:
    """Call what an option names; returns the exit code.

    Raises:
        PluginError: it cannot be found, or failed.
    """
    name = invocation.table.plugin_of.get(option.dest)
    module, _, attribute = option.command.partition(":")
    try:
        command: Callable[[Invocation], int | None] = getattr(
            importlib.import_module(module), attribute
        )
        return command(invocation) or 0
    except PlaunchError:
        raise
    except Exception as error:
        if name is None:
            raise
        from plaunch.plugin.calls import one_line  # noqa: PLC0415 - errors only

        raise PluginError(
            f"{option.names[-1]} of plugin {name!r} failed: {one_line(error)}"
        ) from error
