"""One option of the command line, as data: the core's and those of plugins are made of the same.

A plugin lists a module in the entry-point group `plaunch.options` that has `OPTIONS`, a tuple of
these, and `PLUGIN`, what has its hooks, as `"package.module"` or `"package.module:object"`; that is
imported in launches for which one of the options is given. The module with the options is imported
for every command line, so it imports nothing else.
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
        names: how it is written; the last one also names its variable and its attribute. A plugin's
            begin with two dashes.
        help: what it does, with its default.
        default: its value if none is given; a flag is off.
        metavar: stands for the value in the help text.
        read: makes the value of a text, or raises ValueError with what is wrong; None for a flag,
            which is on or off.
        choices: the values that there are.
        plugins: the kind of plugins whose names are values, for completion.
        path: `file` or `directory`, where a value is one, for completion.
        has_variable: whether `PET_<NAME>` is its default, and a settings file may give it. What has
            a command never has one.
        variables: other variables that give it, such as those of torchrun; `PET_<NAME>` and the
            command line come first.
        bare: the value of an option that is written without one.
        is_repeated: whether it may be written several times; its values make a list.
        is_shared: whether scripts often have an option of this name, so that no warning comes if it
            stands after the script.
        command: `"package.module:function"`, which is called with a `plaunch.cli.Invocation`
            instead of a launch if the option is given; it returns the exit code.
        takes_errors: whether the command is called as well if other options cannot be read.
        source: `"package.module:function"`, which is called with the parsed options
            (`plaunch.cli.Arguments`) as soon as the command line and the variables have been read,
            also if the option is not given. It gives values to options that have none, and returns
            the name of the file that has them, or an empty text.
        fill: `"package.module:function"`, which is called before the settings are made of the
            options, with the parsed options (`plaunch.cli.Arguments`) and the plugin manager, if
            the option is given. It gives values to options that have none, and returns one line
            for the user, or an empty text.
        fill_variables: variables that are a reason to call it as well.
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
        """The attribute of the parsed options."""
        return self.names[-1].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """The variable that has its default; empty if there is none."""
        return f"PET_{self.dest.upper()}" if self.has_variable else ""

    def value_of(self, text: str) -> Any:
        """The value that `text` means.

        Raises:
            ValueError: it means none; the message says what is wrong.
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
    """Read a whole number."""
    return whole(text)


def seconds(duration: Duration) -> Callable[[str], float]:
    """Make what reads a duration of this sort: `PERIOD`, `LIMIT` or `PATIENCE`."""
    return duration.parse


def port(text: str) -> int:
    """Read a port number; 0 is one."""
    number = digits(text, 65535)
    if number is None:
        raise ValueError(f"{quote(text)} is not a port number from 0 to 65535")
    return number


def port_range(text: str) -> tuple[int, int]:
    """Read `29500-29599`: the first and the last port of a range."""
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
    """Read words between commas; a doubled comma is a comma of a word, as in torchrun."""
    parts = text.replace(",,", "\0").split(",")
    return [part.replace("\0", ",") for part in parts if part]
