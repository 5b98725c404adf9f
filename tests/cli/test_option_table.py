"""The options of the core and of plugins, together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from plaunch.cli.help import format_help
from plaunch.cli.options import OPTIONS
from plaunch.cli.parser import Arguments, OptionTable, parse
from plaunch.errors import DuplicateNameError, PluginError, UsageError
from plaunch.options import Option, integer
from plaunch.plugin.options import PluginOptions


def declared(name, *options, owner="acme 1.0"):
    return PluginOptions(name, owner, options, f"{name}.plugin")


TABLE_ATTRIBUTES = [
    f"--{name.replace('_', '-')}"
    for name in sorted({*dir(Arguments(OptionTable(), []))} - {*dir(SimpleNamespace())})
    if not name.startswith("_")
]
LEVEL = Option(("--acme-level",), "how much", 1, "N", integer, variables=("ACME_LEVEL",))


def test_options_of_plugins_are_in_the_help_under_their_name():
    percent = Option(("--acme-part",), "50% of %s")
    table = OptionTable([declared("acme", LEVEL, percent)])
    text = format_help(table)
    assert "50% of %s" in text
    assert text.index("plugins and help:") < text.index("acme:") < text.index("--acme-level N")
    assert table.is_plugins(table.find("acme_level"))
    assert not table.is_plugins(table.find("nnodes"))


@pytest.mark.parametrize(
    ("argv", "environ", "value", "source"),
    [
        ([], {}, 1, "default"),
        (["--acme-level=2"], {"PET_ACME_LEVEL": "3"}, 2, "command line"),
        (["--acme_level", "2"], {}, 2, "command line"),
        ([], {"PET_ACME_LEVEL": "3", "ACME_LEVEL": "4"}, 3, "PET_ACME_LEVEL"),
        ([], {"ACME_LEVEL": "4"}, 4, "ACME_LEVEL"),
    ],
)
def test_they_are_parsed_as_those_of_the_core(argv, environ, value, source):
    args = parse([*argv, "x.py"], environ, OptionTable([declared("acme", LEVEL)]))
    assert args.acme_level == value
    assert args.sources["acme_level"] == source
    assert args.unknown_variables == []


def test_the_error_of_a_plugin_about_a_value_is_shown():
    def read(text):
        raise ValueError(f"{text} is odd")

    table = OptionTable([declared("acme", Option(("--acme-odd",), "odd", read=read))])
    with pytest.raises(UsageError, match="argument --acme-odd: 3 is odd"):
        parse(["--acme-odd=3", "x.py"], {}, table)


def test_two_plugins_with_one_option_are_both_named():
    other = declared("other", LEVEL, owner="other 2.0")
    table = OptionTable([declared("acme", LEVEL), other])
    with pytest.raises(DuplicateNameError) as caught:
        parse(["--acme-level=2", "x.py"], {}, table)
    assert "plugin 'acme' of acme 1.0 and by plugin 'other' of other 2.0" in str(caught.value)
    assert table.find("acme_level") is None
    parse(["x.py"], {}, table)  # who does not use it is not disturbed


def test_a_plugin_cannot_replace_an_option_of_the_core():
    table = OptionTable([declared("acme", Option(("--nnodes",), "mine"), LEVEL)])
    assert parse(["--nnodes=3", "x.py"], {}, table).nnodes == "3"
    assert table.find("nnodes") in OPTIONS
    assert table.find("acme_level") is LEVEL
    assert len(table.problems) == 1
    assert "declared by plaunch itself and by plugin 'acme' of acme 1.0" in table.problems[0]


@pytest.mark.parametrize("name", ["--help", "--version", *TABLE_ATTRIBUTES])
def test_a_plugin_cannot_use_an_attribute_of_parsed_options(name):
    table = OptionTable([declared("acme", Option((name,), "mine"), LEVEL)])
    assert len(table.problems) == 1
    assert "--acme-level" in format_help(table)
    assert parse(["x.py"], {}, table).table is table


def test_what_an_option_calls_is_its_plugins():
    table = OptionTable([declared("acme", LEVEL)])
    assert table.call(LEVEL, "math:sqrt", 4.0) == 2.0
    with pytest.raises(PluginError, match="--acme-level of plugin 'acme' failed: ValueError"):
        table.call(LEVEL, "math:sqrt", -1.0)
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        table.call(table.find("nnodes"), "math:sqrt", -1.0)


def test_a_variable_has_one_owner_too():
    rival = Option(("--rival",), "mine", variables=("ACME_LEVEL",))
    table = OptionTable([declared("acme", LEVEL), declared("other", rival)])
    assert len(table.problems) == 2
