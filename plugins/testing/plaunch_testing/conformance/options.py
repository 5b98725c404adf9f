"""The conformance suite for modules that declare options."""

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
# First import what every command line has imported before it reads options.
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
# Values that users may give by mistake.
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
    "a byte that is not text": "caf\udce9",
    "lines": "a\nb",
}


class OptionsConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `plugin` returns the module or object that has `OPTIONS` and, unless it is always loaded,
    `PLUGIN`.
    """

    def plugin(self) -> Any:
        """Return the module or object that declares the options; override this."""
        raise NotImplementedError

    def options_declared(self) -> Iterator[Option]:
        """Yield the valid options."""
        return (option for option in self.thing.OPTIONS if isinstance(option, Option))

    def use_once(self) -> object:
        """Read every option from odd texts; other tests cover errors."""
        for option in self.options_declared():
            for text in ODD_TEXTS.values():
                try:
                    option.value_of(text)
                except Exception:  # noqa: BLE001, S112
                    continue
        return None

    def test_it_declares_options(self) -> None:
        """`OPTIONS` contains `plaunch.options.Option` objects with names such as --acme-level."""
        assert len(tuple(self.thing.OPTIONS)) > 0, "OPTIONS is empty"
        for option in self.thing.OPTIONS:
            assert isinstance(option, Option), f"{option!r} is not a plaunch.options.Option"
            assert option.names, f"an option has no name: {option!r}"
            wrong = [name for name in option.names if not _NAME.fullmatch(name)]
            assert not wrong, f"{wrong} are not names such as --acme-level"
        plugin = getattr(self.thing, "PLUGIN", "")
        assert isinstance(plugin, str), f"PLUGIN is {plugin!r}, not MODULE or MODULE:OBJECT"

    def test_importing_it_imports_nothing_else(self) -> None:
        """Every command line imports it, even `--help`, so it must import nothing heavy.

        The standard library is allowed.
        """
        name: str = self.module or getattr(self.thing, "__module__", "") or self.thing.__name__
        done = subprocess.run(  # noqa: PLW1510 - checked below
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
        """No option has a name, variable or attribute of the core or of another option."""
        table = installed_table((), {})
        cores = (option for option in table if not table.is_plugins(option))
        owners = {word: "plaunch itself" for option in cores for word in _words(option)}
        for option in self.options_declared():
            for word in dict.fromkeys(_words(option)):
                assert word not in owners, f"{word} of {option.names[-1]} belongs to {owners[word]}"
                owners[word] = option.names[-1]

    def test_each_option_has_a_help_text(self) -> None:
        """`--help` shows it, on one line."""
        for option in self.options_declared():
            text = option.help
            assert isinstance(text, str), f"the help of {option.names[-1]} is {text!r}"
            assert text.strip(), f"{option.names[-1]} has no help"
            assert text.isprintable(), f"the help of {option.names[-1]} is not one line: {text!r}"

    @pytest.mark.parametrize("what", ODD_TEXTS)
    def test_odd_values_are_refused(self, what: str) -> None:
        """An invalid value raises a `ValueError` with a message."""
        for option in self.options_declared():
            try:
                option.value_of(ODD_TEXTS[what])
            except ValueError as error:
                assert str(error), f"{option.names[-1]} has an error without a message"  # noqa: PT017

    def test_its_choices_are_valid(self) -> None:
        """Its choices, and the value that it has when given without one, can be read."""
        for option in self.options_declared():
            for text in (*option.choices, *([] if option.bare is None else [option.bare])):
                option.value_of(text)

    def test_what_it_names_can_be_imported(self) -> None:
        """The plugin, and the functions of options, can be imported."""
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
    """Return the names that must be unique among options."""
    return (*option.names, option.dest, *option.variables)
