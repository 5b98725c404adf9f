"""What `-p` and the environment say about plugins."""

from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch.plugin.selection import Selection, Word


def said(*arguments: str, **environ: str) -> tuple[list[str], list[str]]:
    words = Selection(arguments, environ)
    return [word.text for word in words.loads], [word.text for word in words.blocks]


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "x": True,
        "rendezvous:x": True,
        "plugin:x": False,
        "acme-dist:x": True,
        "Acme.Dist:x": True,
        "other:x": False,
        "y": False,
        "x:x": False,
        "rendezvous:y": False,
    }.items(),
)
def test_a_word_means_a_name_or_a_name_of_a_kind_or_distribution(text, expected) -> None:
    assert Word(text, "-p").means("rendezvous", "x", "acme_dist") is expected


def test_a_word_with_a_distribution_means_nothing_that_is_not_installed() -> None:
    assert not Word("acme:x", "-p").means("plugin", "x")


SAID = {
    "nothing": ((), {}, ([], [])),
    "arguments": (("a", "no:b"), {}, (["a"], ["b"])),
    "the variable": ((), {"PLAUNCH_PLUGINS": "a,no:b  c, no:d,"}, (["a", "c"], ["b", "d"])),
    "the variable, empty": ((), {"PLAUNCH_PLUGINS": " , "}, ([], [])),
    "the last one counts": (("a", "no:a"), {}, ([], ["a"])),
    "the last one counts, loading": (("no:a", "a"), {}, (["a"], [])),
    "arguments overrule the variable": (("a",), {"PLAUNCH_PLUGINS": "no:a"}, (["a"], [])),
    "other forms are other words": (("plugin:a", "no:a"), {}, (["plugin:a"], ["a"])),
    "once is enough": (("a", "a"), {"PLAUNCH_PLUGINS": "a"}, (["a"], [])),
    "spaces around": ((" a ",), {}, (["a"], [])),
}


@pytest.mark.parametrize(("arguments", "environ", "expected"), SAID.values(), ids=SAID)
def test_words(arguments, environ, expected) -> None:
    assert said(*arguments, **environ) == expected


@pytest.mark.parametrize("argument", ["", "no:", "  "])
def test_an_empty_word_is_an_error(argument) -> None:
    with pytest.raises(UsageError, match=r"names no plugin; write -p NAME or -p no:NAME"):
        said(argument)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, True), ("", True), ("0", True), ("1", False), ("yes", False)]
)
def test_autoload(value, expected) -> None:
    environ = {} if value is None else {"PLAUNCH_DISABLE_PLUGIN_AUTOLOAD": value}
    assert Selection((), environ).autoload is expected


def test_a_blocker_tells_where_it_was_said() -> None:
    words = Selection(["no:x"], {"PLAUNCH_PLUGINS": "no:y"})
    assert words.blocker("rendezvous", "x") == "-p no:x"
    assert words.blocker("rendezvous", "y") == "'no:y' in PLAUNCH_PLUGINS"
    assert words.blocker("rendezvous", "z") == ""
