"""What every module must do that declares options."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from plaunch.cli import installed_table
from plaunch.options import Option

from plaunch_testing.conformance.plugin_suite import PluginSuite

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMPORT_TIMEOUT = 60.0  # seconds; a busy machine may take long to read files
# What any command line has imported by the time that it looks for options comes first.
_IMPORT = """\
import sys
sys.path[:] = {path!r}
import plaunch.options
from plaunch.cli import installed_table, main
before = set(sys.modules)
import {module}
print("imported", *sorted(set(sys.modules) - before))
"""
_NAME = re.compile(r"--[a-z][a-z0-9]*(-[a-z0-9]+)*")
# What users may write by mistake.
ODD_TEXTS = {
    "nothing": "",
    "a space": " ",
    "a word": "x",
    "a dash": "-",
    "a negative number": "-1",
    "a huge number": "9" * 5000,
    "a fraction": "0.1e9",
    "commas": ",,,",
    "another alphabet": "ключ",
    "a byte that is no text": "caf\udce9",
    "lines": "a\nb",
}


class OptionsConformance(PluginSuite):
    """Derive from it, say what the `plugin` is, and let pytest collect the class.

    It is the module, or the object in one, that has `OPTIONS` and, if it is not always on,
    `PLUGIN`.
    """

    def plugin(self) -> Any:
        """The module or object that declares the options; to be overridden."""
        raise NotImplementedError

    def options_declared(self) -> Iterator[Option]:
        """The options, as far as they are some."""
        return (option for option in self.thing.OPTIONS if isinstance(option, Option))

    def use_once(self) -> object:
        """Read every option, also from odd texts; whether that goes well, other tests say."""
        for option in self.options_declared():
            for text in ODD_TEXTS.values():
                try:
                    option.value_of(text)
                except Exception:  # noqa: BLE001, S112
                    continue
        return None

    def test_it_declares_options(self) -> None:
        """`OPTIONS` are some `plaunch.options.Option`, whose names begin with two dashes."""
        assert len(tuple(self.thing.OPTIONS)) > 0, "OPTIONS has none"
        for option in self.thing.OPTIONS:
            assert isinstance(option, Option), f"{option!r} is no plaunch.options.Option"
            assert option.names, f"an option has no name: {option!r}"
            wrong = [name for name in option.names if not _NAME.fullmatch(name)]
            assert not wrong, f"{wrong} are no names such as --acme-level"
        plugin = getattr(self.thing, "PLUGIN", "")
        assert isinstance(plugin, str), f"PLUGIN is {plugin!r}, not MODULE or MODULE:OBJECT"

    def test_importing_it_imports_nothing_else(self) -> None:
        """It is imported for every command line, also for `--help`; what it needs comes later.

        What comes with Python may be imported.
        """
        name: str = self.module or getattr(self.thing, "__module__", "") or self.thing.__name__
        done = subprocess.run(  # noqa: PLW1510 - said below
            [sys.executable, "-c", _IMPORT.format(path=sys.path, module=name)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT,
        )
        assert done.returncode == 0, f"module {name!r} cannot be imported:\n{done.stderr}"
        own = name.split(".")
        parents = {".".join(own[: count + 1]) for count in range(len(own))}
        found = set(done.stdout.rpartition("imported")[2].split()) - parents - {"plaunch.lazy"}
        others = sorted(m for m in found if m.partition(".")[0] not in sys.stdlib_module_names)
        assert not others, f"importing {name!r} imports {', '.join(others)}"

    def test_each_name_is_that_of_one_option(self) -> None:
        """No option has a name that the core or another plugin uses."""
        table = installed_table((), {})
        cores = (option for option in table if not table.is_plugins(option))
        owners = {word: "plaunch itself" for option in cores for word in _words(option)}
        for option in self.options_declared():
            for word in dict.fromkeys(_words(option)):
                assert word not in owners, f"{word} of {option.names[-1]} is that of {owners[word]}"
                owners[word] = option.names[-1]

    def test_each_says_what_it_does(self) -> None:
        """In `--help`, on one line."""
        for option in self.options_declared():
            text = option.help
            assert isinstance(text, str), f"the help of {option.names[-1]} is {text!r}"
            assert text.strip(), f"{option.names[-1]} has no help"
            assert text.isprintable(), f"the help of {option.names[-1]} is not one line: {text!r}"

    @pytest.mark.parametrize("what", ODD_TEXTS)
    def test_odd_values_are_refused(self, what: str) -> None:
        """A value that is none is a `ValueError` that says what is wrong."""
        for option in self.options_declared():
            try:
                option.value_of(ODD_TEXTS[what])
            except ValueError as error:
                assert str(error), f"{option.names[-1]} does not say what is wrong"  # noqa: PT017

    def test_what_it_offers_can_be_given(self) -> None:
        """Its choices, and the value of an option that is written without one."""
        for option in self.options_declared():
            for text in (*option.choices, *([] if option.bare is None else [option.bare])):
                option.value_of(text)

    def test_what_it_names_can_be_imported(self) -> None:
        """The plugin, when an option is given, and the functions of options."""
        _load(getattr(self.thing, "PLUGIN", ""))
        for option in self.options_declared():
            for path in (option.command, option.source, option.fill):
                function = _load(path)
                assert function is None or callable(function), f"{path} cannot be called"


def _load(path: str) -> object:
    if not path:
        return None
    module, _, attributes = path.partition(":")
    thing: object = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        thing = getattr(thing, attribute)
    return thing


def _words(option: Option) -> tuple[str, ...]:
    """What only one option may have."""
    return (*option.names, option.dest, *option.variables)
