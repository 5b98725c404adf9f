"""The options and errors in docs/etcd.md are those of the code."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import plaunch_rendezvous_etcd
import pytest
from plaunch_rendezvous_etcd import options
from plaunch_rendezvous_etcd.versions import MIN_PATCHES

PAGE = (Path(__file__).parents[2] / "docs/etcd.md").read_text()
SOURCES = Path(plaunch_rendezvous_etcd.__file__).parent
HOLE = "\0"  # for inserted values


def section(heading):
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text):
    """The cells of the tables in a text, without heads."""
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [line.split(" | ") for line in lines]


def table():
    """The options by name: unit and default."""
    found = {}
    for cells in rows(section("Options").partition("| variable |")[0])[1:]:
        for name in re.findall(r"`(\w+)`", cells[0]):
            found[name] = (cells[1].strip(), cells[-1])
    return found


def test_every_option_is_listed():
    assert sorted(table()) == sorted(options.OPTIONS)


@pytest.mark.parametrize("pair", [options.CA_OPTIONS, options.CERT_OPTIONS, options.KEY_OPTIONS])
def test_both_spellings_are_in_one_row(pair):
    assert f"| `{pair[0]}`, `{pair[1]}` | path |" in section("Options")


@pytest.mark.parametrize("name", ["connect_timeout", "read_timeout", "job_ttl"])
def test_times_are_listed_with_unit_and_default(name):
    (default,) = (f.default for f in dataclasses.fields(options.EtcdOptions) if f.name == name)
    assert table()[name] == ("s", f"{default:g}")


def test_other_defaults_are_listed():
    assert table()["protocol"][1] == "`http`"
    assert not options.Security().is_on
    for prefix in (options.PREFIX, *options.PREFIXES.values()):
        assert f"`{prefix}`" in table()["etcd_prefix"][1]
    assert f"the port is {options.DEFAULT_PORT} if" in section("Options")
    assert f"at least {options.MIN_TTL:g} |" in section("Options")
    for variable in (options.USER_VARIABLE, options.PASSWORD_VARIABLE):
        assert f"\n| `{variable}` |" in section("Options")


def test_the_oldest_recommended_versions_are_listed():
    for (major, minor), patch in MIN_PATCHES.items():
        assert f"{major}.{minor}.{patch}, " in section("When to use it").partition("Use etcd ")[2]


def skeleton(node):
    """Return a string literal with holes for inserted values; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%\w+", HOLE, node.value)  # a template of logging
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else HOLE for part in node.values
        )
    if isinstance(node, ast.BinOp):
        sides = [skeleton(side) for side in (node.left, node.right)]
        return None if None in sides else "".join(sides)
    return None


def messages(*modules):
    found = []
    for module in modules:
        for node in ast.walk(ast.parse((SOURCES / module).read_text())):
            if isinstance(node, ast.expr):
                found.append(skeleton(node))
    return [text for text in found if text]


def listed():
    """The messages on the page, with holes."""
    quoted = [re.fullmatch(r"`(.+)`", cells[0]) for cells in rows(section("etcd error messages"))]
    return [found[1].replace("...", HOLE) for found in quoted if found]


def test_every_listed_message_exists():
    ours = messages("client.py", "diagnosis.py", "options.py", "protocol.py", "store.py")
    # Inserted values may be composed, such as an endpoint and its missing permission.
    assert len(listed()) > 20
    for quoted in listed():
        text = quoted.strip(HOLE)
        assert any(text in message for message in ours), quoted


def test_every_problem_is_listed():
    problems = []
    for module in ("client.py", "diagnosis.py"):
        for node in ast.walk(ast.parse((SOURCES / module).read_text())):
            is_problem = isinstance(node, ast.Call) and ast.unparse(node.func) == "EndpointProblem"
            text = skeleton(node.args[0]) if is_problem else None
            if isinstance(node, ast.Return) and node.value is not None:
                text = skeleton(node.value)
            if text and len(text.replace(HOLE, "")) > 2:  # more than an inserted error
                problems.append(text)
    assert len(problems) > 15
    quoted = [message.strip(HOLE) for message in listed()]
    for text in problems:
        assert any(message in text for message in quoted), text
