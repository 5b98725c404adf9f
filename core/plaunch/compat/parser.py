"""torchrun's parser, for programs that extend it or call it: an ordinary one of argparse."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from plaunch.cli.options import GROUPS, OPTIONS
from plaunch.cli.parser import COMMAND_LINE, DEFAULT
from plaunch.cli.settings import parse_min_max_nnodes
from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.options import Option

# Where torchrun's namespace has another value for "not given" than ours.
_DEFAULTS: dict[str, object] = {"master_addr": "127.0.0.1", "node_rank": 0, "logs_specs": None}
_OFF, _ON = ("0", "false"), ("1", "true")


class env(argparse.Action):  # noqa: N801 - the name is torchrun's
    """An argument whose default is the variable `PET_<DEST>`, if that is set."""

    def __init__(
        self, dest: str, default: Any = None, required: bool = False, **kwargs: Any
    ) -> None:
        default = os.environ.get(f"PET_{dest.upper()}", default)
        super().__init__(
            dest=dest, default=default, required=required and default is None, **kwargs
        )

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Take the value from the command line."""
        setattr(namespace, self.dest, values)


class check_env(argparse.Action):  # noqa: N801 - the name is torchrun's
    """A flag that the variable `PET_<DEST>` sets as well, with 1 or true.

    Raises:
        UsageError: the variable is neither 0, 1, true nor false.
    """

    def __init__(self, dest: str, default: bool = False, **kwargs: Any) -> None:
        variable = f"PET_{dest.upper()}"
        text = os.environ.get(variable, str(default)).lower()
        if variable == "PET_STANDALONE" and not text:
            text = _ON[0]  # Kubeflow's training operator turns it on in this way
        if text not in _OFF + _ON:
            raise UsageError(f"variable {variable} is {text!r}; write 0, 1, true or false")
        super().__init__(dest=dest, const=True, default=text in _ON, nargs=0, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the flag."""
        setattr(namespace, self.dest, self.const)


def get_args_parser() -> argparse.ArgumentParser:
    """The parser; callers may add arguments of their own. The name is torchrun's.

    All options have both spellings, dashes and underscores, and their `PET_*` variable.
    `training_script` and `training_script_args` are positional, so that the script's options follow
    the script. It knows plaunch's own options too, but for those that print something and end.
    """
    parser = argparse.ArgumentParser(
        description="Start workers on this node, give each its rank and the world, and watch them.",
        allow_abbrev=False,
    )
    for title, options in GROUPS:
        group = parser.add_argument_group(title)
        for option in options:
            if option.has_variable or option.is_repeated:
                _add(group, option)
    parser.add_argument(
        "training_script", help="the script, module or program that the workers run"
    )
    parser.add_argument(
        "training_script_args", nargs=argparse.REMAINDER, help="what it is given, as it stands"
    )
    return parser


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line without the program's name; the name is torchrun's.

    Raises:
        SystemExit: an option is unknown or its value is malformed (code 2), or after `--help`.
    """
    return get_args_parser().parse_args(args)


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    names = dict.fromkeys(
        spelt
        for name in option.names
        for spelt in (name, f"--{name[2:].replace('-', '_')}" if name[:2] == "--" else name)
    )
    help_text = option.help.replace("%", "%%")
    if option.is_repeated:
        group.add_argument(*names, action="append", default=[], help=help_text)
    elif option.read is None:
        group.add_argument(*names, dest=option.dest, action=check_env, help=help_text)
    else:
        default = _DEFAULTS.get(option.dest, option.default)
        group.add_argument(
            *names,
            dest=option.dest,
            action=env,
            default=[] if default == () else default,
            type=option.read,
            metavar=option.metavar,
            choices=option.choices or None,
            help=help_text,
        )


def own_arguments(
    args: argparse.Namespace, allocate: Callable[[argparse.Namespace], object] | None = None
) -> argparse.Namespace:
    """The arguments in `args`, which may come from anywhere, as plaunch's command line has them.

    What is missing gets its default. Texts are read; what is no text stays as it is, but for
    numbers where a text is expected.

    Args:
        args: what `get_args_parser` makes, or any object with some of its attributes.
        allocate: fills in what a scheduler says, where nothing was given.

    Raises:
        UsageError: a text is malformed.
    """
    own = argparse.Namespace(sources={})
    for option in OPTIONS:
        value = _read(option, getattr(args, option.dest, option.default))
        if value is None or value == ():
            value = [] if option.default == () else option.default
        is_default = value in (option.default, [])
        setattr(own, option.dest, value)
        own.sources[option.dest] = DEFAULT if is_default else COMMAND_LINE
    own.plugins = list(getattr(args, "plugins", None) or [])
    own.training_script = getattr(args, "training_script", None)
    own.training_script_args = list(getattr(args, "training_script_args", None) or [])
    own.is_divided, own.unknown_variables = True, []  # the caller's parser has decided
    defaults = _take_defaults(own)
    if allocate is not None:
        allocate(own)
    _settle(own, defaults)
    return own


def _take_defaults(own: argparse.Namespace) -> dict[str, object]:
    """Take torchrun's defaults, which are values like others, for options that were not given."""
    taken: dict[str, object] = {}
    for dest in ("master_addr", "node_rank"):
        value = getattr(own, dest)
        if value == _DEFAULTS[dest]:
            taken[dest] = value
            setattr(own, dest, None)
            own.sources[dest] = DEFAULT
    return taken


def _settle(own: argparse.Namespace, defaults: dict[str, object]) -> None:
    """Give them back where they count, which is for `static`, if nobody has said otherwise."""
    if own.rdzv_backend != "static":
        return
    if parse_min_max_nnodes(own.nnodes)[1] == 1:
        defaults.pop("master_addr", None)
    for dest, value in defaults.items():
        if own.sources[dest] == DEFAULT:
            setattr(own, dest, value)
            own.sources[dest] = COMMAND_LINE


def _read(option: Option, value: Any) -> Any:
    if option.read is None:
        return bool(value)
    if value is None or option.is_repeated or not option.has_variable:
        return value
    if option.read is str:
        return value if isinstance(value, str) else str(value)
    if not isinstance(value, str):
        return value
    try:
        return option.read(value)
    except ValueError as error:
        raise UsageError(f"{option.names[-1]}: {error}") from None
