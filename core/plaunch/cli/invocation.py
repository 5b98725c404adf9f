"""A command line that asks for something other than a launch, as what it asks for sees it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from plaunch import parts
from plaunch.cli.stdout import STDOUT
from plaunch.cli.table import COMMAND_LINE, installed_table
from plaunch.errors import PlaunchError, PluginError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TextIO

    from plaunch.cli.table import Arguments, OptionTable
    from plaunch.config import LaunchConfig
    from plaunch.health import HealthChecks
    from plaunch.options import Option
    from plaunch.plugin.manager import PluginManager


class Invocation:
    """What the user has typed, and what can be made of it.

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
        self._manager: PluginManager | None = None
        # The values by attribute; none if they cannot be parsed.
        self.options: Mapping[str, Any] = {} if args is None else vars(args)

    @property
    def stream(self) -> TextIO:
        """Stdout, to which nothing else writes meanwhile."""
        return STDOUT.stream

    def write(self, text: str) -> None:
        """Write to stdout, at once.

        Raises:
            PlaunchError: it takes no text.
        """
        STDOUT.write(text)

    def parsed(self) -> Arguments:
        """The options.

        Raises:
            UsageError: they cannot be parsed.
        """
        if self.args is None:
            raise self.error or UsageError("the options cannot be parsed")
        return self.args

    def command(self) -> tuple[Callable[..., Any] | str, list[str]]:
        """What each worker runs, and its arguments.

        Raises:
            UsageError: there is no script, or it cannot be started.
        """
        from plaunch.cli.command import worker_command  # not for --help

        return worker_command(self.parsed())

    def create_manager(self) -> PluginManager:
        """Find the plugins, and load those of every launch.

        Raises:
            PlaunchError: one of them cannot be used.
        """
        from plaunch.plugin.manager import PluginManager  # after usage errors

        self._manager = PluginManager.create(
            self.plugins, words=self.options.get("plugins", ()), entries=self.table.entries
        )
        return self._manager

    def configure(self, manager: PluginManager) -> tuple[LaunchConfig, str]:
        """Make the settings of the options, and say what plugins have filled in.

        Raises:
            PlaunchError: they cannot be made.
        """
        from plaunch.cli.settings import config_from_args, fill_in

        args = self.parsed()
        with self.blaming():
            taken = fill_in(args, manager)
            return config_from_args(args, manager), taken

    def load_chosen(self, manager: PluginManager, config: LaunchConfig) -> None:
        """Load the plugins that the settings name.

        Raises:
            PlaunchError: one of them cannot be loaded, or is not there.
        """
        from plaunch.launch.prepare import find_events
        from plaunch.plugin.kinds import RENDEZVOUS, SIGNAL_POLICIES
        from plaunch.plugin.policies import LaunchRestartPolicy

        manager.get(RENDEZVOUS, config.rdzv_backend)
        find_events(config, manager, is_wanted=parts.find_part(parts.EVENTS) is not None)
        manager.get(SIGNAL_POLICIES, config.signal_policy)
        manager.use_options(config.options)
        LaunchRestartPolicy(manager, config.context())
        self.create_health_checks(manager, config)

    def create_health_checks(
        self, manager: PluginManager, config: LaunchConfig
    ) -> HealthChecks | None:
        """Make the health checks that the settings name, and ask none of them.

        Raises:
            PlaunchError: one of them cannot be loaded or made, or is not there.
        """
        if not config.health_checks:
            return None
        checks: HealthChecks = parts.load_part(parts.HEALTH_CHECKS)(manager, config.context())
        return checks

    @contextlib.contextmanager
    def blaming(self) -> Iterator[None]:
        """Run what calls plugins; what they raise without being asked by name is theirs.

        Their `sys.exit` does not end a launch either; plaunch itself never calls it
        there.

        Raises:
            PluginError: code of a plugin failed.
        """
        try:
            yield
        except PlaunchError:
            raise
        except (Exception, SystemExit) as error:
            from plaunch.process.failures.error_file import one_line  # errors only
            from plaunch.process.launcher_variables import owns_process

            who = None if self._manager is None else self._manager.culprits.of_error(error)
            if who is not None:
                raise PluginError(f"{who} failed: {one_line(error)}") from error
            if isinstance(error, Exception) or not owns_process():
                raise
            raise PluginError(
                f"something called sys.exit({error.code!r}) in the launcher; PLAUNCH_DEBUG=1 "
                "shows where"
            ) from error

    def as_given(self, text: str) -> str:
        """A message about options, with the variable or file that has given them."""
        return text if self.args is None else self.args.as_given(text)


def given_command(args: Arguments) -> Option | None:
    """The option that asks for something other than a launch, if one is given."""
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
