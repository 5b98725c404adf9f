"""What a command line says: the value of each option, and where it comes from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from plaunch.cli.table import OptionTable

DEFAULT, COMMAND_LINE = "default", "command line"


class Arguments(SimpleNamespace):
    """The options by attribute, and what else a command line says.

    Args:
        table: all options.
        command: the words from the script on.

    Attributes:
        table: all options.
        sources: for the attribute of each option `default`, `command line`, the name of its
            variable, that of the settings file, or another source that has filled it in.
        training_script: the script; None if there is none.
        training_script_args: its arguments.
        is_divided: whether `--` stands in front of the script.
        unknown_variables: the names of `PET_*` variables that belong to no option.
        settings_files: the files that have filled in others.
    """

    def __init__(self, table: OptionTable, command: Sequence[str]) -> None:
        super().__init__()
        self.table = table
        self.sources: dict[str, str] = {}
        self.training_script = command[0] if command else None
        self.training_script_args = list(command[1:])
        self.is_divided = False
        self.unknown_variables: list[str] = []
        self.settings_files: list[str] = []

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def is_given(self, dest: str) -> bool:
        """Whether an option, by its attribute, has a value that is not its default."""
        return self.sources.get(dest, DEFAULT) != DEFAULT  # a plugin's may not be there

    def give(self, dest: str, value: object, source: str) -> None:
        """Give an option its value, which comes from `source`."""
        setattr(self, dest, value)
        self.sources[dest] = source

    def as_given(self, text: str) -> str:
        """A message about options, with the variables that gave them in place of the options.

        Args:
            text: the message; it names options as they are written on a command line.
        """
        given: dict[str, str] = {}
        for option in self.table:
            source = self.sources.get(option.dest)
            if source and source in (option.variable, *option.variables):
                given.update(dict.fromkeys(option.names, f"variable {source}"))
            elif source in self.settings_files:
                given.update(dict.fromkeys(option.names, f"{option.dest} in {source}"))
        if not given:
            return text
        import re  # noqa: PLC0415 - errors only

        names = "|".join(map(re.escape, given))
        return re.sub(rf"(?<![\w-])(?:{names})(?![\w-])", lambda m: given[m.group()], text)
