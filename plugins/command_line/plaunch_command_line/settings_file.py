"""Reads options from the settings file."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from plaunch.cli import await_file_system
from plaunch.errors import UsageError
from plaunch.numbers import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plaunch.cli import Arguments
    from plaunch.options import Option


def apply_file(args: Arguments, path: str, *, is_project: bool) -> None:
    """Set options that are not given to the values in the file at `path`; changes `args`.

    Args:
        args: the options.
        path: the path of the file, also for messages.
        is_project: whether the settings are in its table `[tool.plaunch]`.

    Raises:
        UsageError: the file cannot be read, or has an unknown option or an invalid value.
    """
    settable: dict[str, Option] = {}
    tables: dict[str, dict[str, Option]] = {}  # of plugins
    for option in filter(lambda option: option.has_variable, args.table):
        settable[option.dest] = option
        if args.table.is_plugins(option):
            tables.setdefault(args.table.plugin_of[option.dest], {})[option.dest] = option
    for option, key, value in _given(_read(path, is_project=is_project), path, settable, tables):
        if not args.is_given(option.dest):
            args.give(option.dest, _value(option, value, f"{path}, {key}"), path)


def _read(path: str, *, is_project: bool) -> Mapping[str, Any]:
    """The settings in a file, by key."""
    try:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise UsageError(
            f"the settings file {path} cannot be read with Python 3.10 alone: pip install "
            "'plaunch[toml]', or give --config= to ignore the file"
        ) from None
    try:
        data = await_file_system(f"the settings file {path!r} (--config)", lambda: _bytes(path))
        content: dict[str, Any] = toml.loads(data.decode())
    except RecursionError:
        raise UsageError(f"the settings file {path} is nested too deeply") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, (toml.TOMLDecodeError, UnicodeDecodeError)):
            raise UsageError(f"the settings file {path} is not TOML: {error}") from None
        raise UsageError(f"the settings file {path!r} (--config) cannot be read: {why}") from None
    if not is_project:
        return content
    tool = content.get("tool", {})
    own: object = tool.get("plaunch", {}) if isinstance(tool, dict) else {}
    if not isinstance(own, dict):
        raise UsageError(f"tool.plaunch in {path} is {quote(own)}, which is not a table")
    return own


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _given(
    settings: Mapping[str, Any],
    path: str,
    known: Mapping[str, Option],
    tables: Mapping[str, Mapping[str, Option]],
    prefix: str = "",
) -> Iterator[tuple[Option, str, Any]]:
    """The options in a file, each with its key and value.

    Args:
        settings: the content of the file, or of a table in it.
        path: the path of the file, for messages.
        known: the allowed options, by attribute.
        tables: the options of the allowed tables, by name of the table.
        prefix: the name of the table, with a dot.
    """
    for key, value in settings.items():
        option = known.get(key.replace("-", "_"))
        if option is not None:
            yield option, prefix + key, value
        elif key in tables and isinstance(value, dict):
            yield from _given(value, path, tables[key], {}, f"{key}.")
        else:
            from plaunch.plugin import did_you_mean  # only for errors

            hint = did_you_mean(key, {name.replace("_", "-") for name in (*known, *tables)})
            raise UsageError(
                f"{path} has {prefix + key!r}, which is not an option{hint}; plaunch --help lists "
                "all options"
            )


def _value(option: Option, value: object, where: str) -> Any:
    """Convert a value in the file to the value of the option."""
    if option.read is None:
        if not isinstance(value, bool):
            raise UsageError(f"{where} is {quote(value)}, which is not true or false")
        return value
    try:
        if option.is_repeated:
            items = value if isinstance(value, list) else [value]
            return [option.value_of(_text(item, where)) for item in items]
        return option.value_of(_text(value, where))
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def _text(value: object, where: str) -> str:
    """The value as text of a command line."""
    if isinstance(value, dict):  # options of a backend, or of event handlers
        return ",".join(f"{key}={_text(item, where)}" for key, item in _flat(value))
    if isinstance(value, list):
        return ",".join(_text(item, where).replace(",", ",,") for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UsageError(f"{where} is {quote(value)}, which cannot be the value of an option")


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
