"""Options in a settings file."""

from __future__ import annotations

import sys

import pytest
from plaunch.cli.parser import OptionTable, parse
from plaunch.errors import UsageError
from plaunch.options import Option, integer
from plaunch.plugin.options import PluginOptions
from plaunch_command_line.options import SettingsFile
from plaunch_events.options import OPTIONS as EVENT_OPTIONS

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11) and __import__("importlib").util.find_spec("tomli") is None,
    reason="there is nothing to read TOML with",
)

SETTINGS = PluginOptions("settings_file", "plaunch", SettingsFile.OPTIONS, "")
ACME = PluginOptions(
    "acme",
    "acme 1.0",
    (
        Option(("--acme-level",), "how much", 1, "N", integer),
        Option(("--acme-word",), "which", metavar="WORD", is_repeated=True),
        Option(("--acme-check",), "look", None, "NAME", command="acme:run"),
    ),
    "acme.plugin",
)
EVENTS = PluginOptions("events", "plaunch 1.0", EVENT_OPTIONS, "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*argv, **environ):
    return parse([*argv, "x.py"], environ, OptionTable([SETTINGS, ACME, EVENTS]))


def test_the_file_is_optional(folder):
    args = read()
    assert args.settings_files == []
    assert set(args.sources.values()) == {"default"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plaunch.toml", "nnodes = '1:4'\nmax-restarts = 3\nno_python = true\n"),
        (
            "pyproject.toml",
            "[tool.plaunch]\nnnodes = '1:4'\nmax-restarts = 3\nno-python = true\n[tool.x]\ny = 1\n",
        ),
    ],
)
def test_the_file_of_the_working_folder(folder, name, text):
    (folder / name).write_text(text)
    args = read()
    assert (args.nnodes, args.max_restarts, args.no_python) == ("1:4", 3, True)
    assert args.settings_files == [name]
    assert args.sources["nnodes"] == name


def test_plaunch_toml_has_priority_over_pyproject(folder):
    (folder / "plaunch.toml").write_text("role = 'a'")
    (folder / "pyproject.toml").write_text("[tool.plaunch]\nrole = 'b'")
    assert read().role == "a"


def test_a_project_without_a_table_has_no_settings(folder):
    (folder / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100")
    assert read().settings_files == []


def test_priority_of_sources(folder):
    (folder / "plaunch.toml").write_text("role = 'file'\ntee = '1'\nredirects = '1'")
    args = read("--role=typed", PET_TEE="2")
    assert (args.role, args.tee, args.redirects) == ("typed", "2", "1")
    assert [args.sources[name] for name in ("role", "tee", "redirects")] == [
        "command line",
        "PET_TEE",
        "plaunch.toml",
    ]


def test_another_file_and_no_file(folder):
    (folder / "plaunch.toml").write_text("role = 'a'")
    (folder / "other.toml").write_text("role = 'b'")
    assert read("--config=other.toml").role == "b"
    assert read(PET_CONFIG="other.toml").role == "b"
    assert read("--config=").role == "default"


def test_tables_and_lists(folder):
    (folder / "plaunch.toml").write_text(
        "tee = 3\nshutdown-timeout = 12.5\nduplicate-stdout-filters = ['a', 'b,c']\n"
        "[rdzv-conf]\njoin_timeout = 60\nis_host = true\n"
        "[event-conf]\njsonl.path = 'x.jsonl'\n"
        "[acme]\nacme-level = 7\nacme-word = ['one', 'two']\n"
    )
    args = read()
    assert (args.tee, args.shutdown_timeout) == ("3", 12.5)
    assert args.duplicate_stdout_filters == ["a", "b,c"]
    assert args.rdzv_conf == "join_timeout=60,is_host=true"
    assert args.event_conf == ["jsonl.path=x.jsonl"]
    assert (args.acme_level, args.acme_word) == (7, ["one", "two"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-restart = 3", "plaunch.toml has 'max-restart', .*did you mean 'max-restarts'"),
        ("max-restarts = 'three'", "plaunch.toml, max-restarts: 'three' is not a whole number"),
        ("max-restarts = true", "plaunch.toml, max-restarts: 'true' is not a whole number"),
        ("no-python = 1", "plaunch.toml, no-python is 1, which is not true or false"),
        ("role = 1979-05-27", "plaunch.toml, role is .*cannot be the value of an option"),
        ("start-method = 'spwan'", "did you mean 'spawn'"),
        ("dry-run = 'text'", "'dry-run', which is not an option"),
        ("[acme]\nlevel = 1", "'acme.level', which is not an option"),
        ("[acme]\nacme-check = 'x'", "'acme.acme-check', which is not an option"),
        ("acme = 3", "'acme', which is not an option"),
        ("role = ", "plaunch.toml is not TOML"),
        ("\udcff", "plaunch.toml is not TOML"),
    ],
)
def test_errors_name_the_file(folder, text, message):
    (folder / "plaunch.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=message) as caught:
        read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("tool = 1", None), ("[tool]\nplaunch = 1  # [tool.plaunch]", "which is|not a table")],
)
def test_malformed_projects(folder, text, message):
    (folder / "pyproject.toml").write_text(text)
    if message is None:
        assert read().settings_files == []
        return
    with pytest.raises(UsageError, match=message):
        read()


def test_a_missing_file(folder):
    with pytest.raises(UsageError, match=r"'no.toml' \(--config\) cannot be read: No such file"):
        read("--config=no.toml")


def test_messages_about_options_name_the_file(folder):
    (folder / "plaunch.toml").write_text("nnodes = '2'")
    assert read().name_sources("2 nodes (--nnodes) want --role") == (
        "2 nodes (nnodes in plaunch.toml) want --role"
    )
