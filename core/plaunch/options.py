"""An option of the command line as data, for the core and for plugins.

A plugin lists a module in the entry-point group `plaunch.options`. The module has `OPTIONS`, a
tuple of `Option`, and `PLUGIN`, the place of its hooks as `"package.module"` or
`"package.module:object"`, which is imported if one of the options is given. Every command line
imports the module with the options, so it must import nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.durations import LIMIT, PATIENCE, PERIOD
from plaunch.numbers import digits, quote, whole
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.durations import Duration

__all__ = [
    "LIMIT",
    "PATIENCE",
    "PERIOD",
    "Option",
    "integer",
    "port",
    "port_range",
    "seconds",
    "words",
]


@plain_dataclass
class Option(Value):
    """One option.

    Args:
        names: its spellings; the last one also names its variable and its attribute. Names of a
            plugin's options begin with two dashes.
        help: what it does, with its default.
        default: its default value; False for a flag.
        metavar: the placeholder of its value in the help text.
        read: parses a text, or raises ValueError with the reason; None for a flag.
        choices: the valid texts, if they are fixed.
        plugins: the kind of plugins whose names are values, for completion.
        path: `file` or `directory` if its value is one, for completion.
        has_variable: whether `PET_<NAME>` and a settings file may set it; always false for an
            option with a command.
        variables: other variables that set it, such as torchrun's; `PET_<NAME>` and the command
            line have priority.
        bare: its value if it is written without one.
        is_repeated: whether it may be repeated; its values form a list.
        is_shared: whether scripts often have an option of this name, so that there is no warning if
            it follows the script.
        command: `"package.module:function"`, called with a `plaunch.cli.Invocation` instead of a
            launch if the option is given; returns the exit code.
        takes_errors: whether the command is also called if other options are invalid.
        source: `"package.module:function"`, called with the parsed options
            (`plaunch.cli.Arguments`) after the command line and the variables have been parsed,
            even if the option is not given. It sets options that are not given, and returns the
            name of the file with their values, or an empty text.
        fill: `"package.module:function"`, called before the settings are created, with the parsed
            options (`plaunch.cli.Arguments`) and the plugin manager, if the option is given. It
            sets options that are not given, and returns one line for the user, or an empty text.
        fill_variables: variables that cause `fill` to be called, too.
    """

    names: tuple[str, ...]
    help: str
    default: object = None
    metavar: str | None = None
    read: Callable[[str], Any] | None = str
    choices: tuple[str, ...] = ()
    plugins: str = ""
    path: str = ""
    has_variable: bool = True
    variables: tuple[str, ...] = ()
    bare: str | None = None
    is_repeated: bool = False
    is_shared: bool = False
    command: str = ""
    takes_errors: bool = False
    source: str = ""
    fill: str = ""
    fill_variables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.read is None and self.default is None:
            object.__setattr__(self, "default", False)
        if self.command:
            object.__setattr__(self, "has_variable", False)

    @property
    def dest(self) -> str:
        """Its attribute of the parsed options."""
        return self.names[-1].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """Its variable, or an empty text."""
        return f"PET_{self.dest.upper()}" if self.has_variable else ""

    def value_of(self, text: str) -> Any:
        """Parse a text.

        Raises:
            ValueError: it is invalid; the message says why.
        """
        if self.read is None:
            if text.lower() not in ("0", "false", "1", "true"):
                raise ValueError(f"{quote(text)} is not 0, 1, true or false")
            return text.lower() in ("1", "true")
        if self.choices and text not in self.choices:
            from plaunch._names import did_you_mean  # errors only

            hint = did_you_mean(text, self.choices)
            raise ValueError(f"{text!r} is not one of {', '.join(self.choices)}{hint}")
        return self.read(text)


def integer(text: str) -> int:
    """Parse a whole number."""
    return whole(text)


def seconds(duration: Duration) -> Callable[[str], float]:
    """Return the parser of a duration: `PERIOD`, `LIMIT` or `PATIENCE`."""
    return duration.parse


def port(text: str) -> int:
    """Parse a port number, from 0."""
    number = digits(text, 65535)
    if number is None:
        raise ValueError(f"{quote(text)} is not a port number from 0 to 65535")
    return number


def port_range(text: str) -> tuple[int, int]:
    """Parse a range of ports, such as `29500-29599`, to its first and last port."""
    low, _, high = text.partition("-")
    first, last = digits(low), digits(high)
    if first is None or last is None:
        raise ValueError(f"{quote(text)} is not a range of ports, such as 29500-29599")
    if not 0 < first <= last <= 65535:
        raise ValueError(
            f"{quote(text)} is not a range of ports between 1 and 65535, smallest first"
        )
    return first, last


def words(text: str) -> list[str]:
    """Parse words between commas; a doubled comma stands for one in a word, as in torchrun."""
    parts = text.replace(",,", "\0").split(",")
    return [part.replace("\0", ",") for part in parts if part]
