"""The table in docs/callers.md, and the tool that writes it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from helpers.waiting import wait_until

# The modules of the tool import each other by name.
sys.path.insert(0, str(Path(__file__).parents[2] / "tools/callers"))
try:
    import callers_page as page
    import callers_run
    import environments
    from libraries import LIBRARIES, Library
    from scenarios import Outcome, Scenario, Verdict, judge, run, steps
finally:
    del sys.path[0]

KEYS = [page.key_of(library, one) for library in LIBRARIES for one in library.scenarios]
BOUND = 100.0  # seconds
TRAINING = Scenario("a training", (("plaunch", "train.py"),), steps())
LINES = {launcher: "\\n".join(steps(launcher=launcher)) for launcher in ("plaunch", "torchrun")}


def test_the_table_has_a_row_for_everything_that_the_tool_runs():
    rows = page.read_rows(page.PAGE.read_text())
    assert list(rows) == KEYS, f"run {page.COMMAND}"
    assert {page.word_of(row) for row in rows.values()} <= {"works", "differs", "fails"}


def test_the_page_says_with_which_torch():
    pinned = environments.read_constraints(()).partition("\ntorch==")[2].partition("\n")[0]
    assert f"torch=={pinned}" in LIBRARIES[0].requirements
    assert f"torch {pinned.rpartition('.')[0]} " in page.PAGE.read_text()


def test_rows_are_the_same_when_they_are_read_again():
    text = page.PAGE.read_text()
    assert page.merge_rows(text, {}, KEYS) == text


def test_a_new_row_replaces_that_of_the_same_run_only():
    library, scenario = LIBRARIES[1], LIBRARIES[1].scenarios[0]
    row = page.row_of(library, scenario, Verdict("fails", "a | b\nc"))
    text = page.PAGE.read_text()
    merged = page.merge_rows(text, {page.key_of(library, scenario): row}, KEYS)
    old, new = page.read_rows(text), page.read_rows(merged)
    assert [key for key in new if old[key] != new[key]] == [page.key_of(library, scenario)]
    assert new[page.key_of(library, scenario)].endswith("| fails: a \\| b c |\n")
    assert page.merge_rows(merged, {}, KEYS[1:]).count("\n") == text.count("\n") - 1


def test_constraints_are_freed_by_name():
    text = environments.read_constraints(("urllib3", "torch"))
    assert "\nurllib3==" not in text
    assert "\ntorch==" not in text
    assert "\ntornado==" in text


@pytest.fixture
def python(tmp_path):
    """Return a function that creates an interpreter: a shell script for each launcher."""
    path = tmp_path / "bin/python"
    path.parent.mkdir()

    def create(plaunch, torchrun="exit 3"):
        path.write_text(f'#!/bin/sh\nif [ "$2" = plaunch ]; then {plaunch}; else {torchrun}; fi\n')
        path.chmod(0o755)
        return path

    return create


def said(launcher):
    return f"printf '%b\\n' '{LINES[launcher]}'"


def processes_in(folder):
    """Return the processes that run in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if path.readlink() == folder:
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize(
    ("plaunch", "torchrun", "verdict"),
    [
        (said("plaunch"), "exit 3", "works: 2 ranks"),
        ("exit 1", said("torchrun"), "differs: exit code 1 instead of 0; works with torchrun"),
        (
            "exit 1",
            "exit 3",
            "fails: exit code 1 instead of 0; with torchrun: exit code 3 instead of 0",
        ),
        (
            "true",
            said("torchrun"),
            f"differs: workers said nothing instead of {sorted(steps())}; works with torchrun",
        ),
    ],
    ids=["works", "differs", "fails", "silent"],
)
def test_the_verdict_is_that_of_a_comparison(tmp_path, python, plaunch, torchrun, verdict):
    judged = judge(TRAINING, python(plaunch, torchrun), tmp_path / "runs", BOUND)
    assert f"{judged.word}: {judged.sentence}" == verdict


def test_nothing_is_compared_with_torchrun_that_it_does_not_have(tmp_path, python):
    scenario = Scenario("nodes", TRAINING.commands, steps(2, 1), only_plaunch=True)
    judged = judge(scenario, python("exit 1", said("torchrun")), tmp_path / "runs", BOUND)
    assert judged == Verdict("fails", "exit code 1 instead of 0")


def test_what_does_not_end_is_ended_with_its_processes(tmp_path, python):
    outcome = run(TRAINING, python("setsid sleep 1000 & wait"), tmp_path / "run", 1.0)
    assert TRAINING.find_problem(outcome) == "did not end within 1 s"
    wait_until(lambda: not processes_in(tmp_path / "run"), "the end of all processes")


def test_another_launcher_than_plaunch_is_a_problem():
    outcome = Outcome((0,), "\n".join(steps(launcher="torchrun")))
    assert TRAINING.find_problem(outcome).startswith("workers said ['0 of 2, node 0: 3, torchrun'")
    assert TRAINING.find_problem(outcome, "torchrun") == ""


def test_a_message_is_counted():
    scenario = Scenario("a message", (), says={"of node . was": 1})
    assert scenario.find_problem(Outcome((0,), "of node 1 was")) == ""
    assert scenario.find_problem(Outcome((0,), "of node 1 was\nof node 2 was")) == (
        "said 'of node . was' 2 times instead of 1"
    )


@pytest.fixture
def tool(tmp_path, monkeypatch, python):
    """Run the tool with one library, whose environment is a shell script."""
    library = Library("acme", ("acme==1.0",), (TRAINING,))
    copy = tmp_path / "page.md"
    copy.write_text(f"# Page\n{page.MARK}\n{page.HEAD}{page.MARK}\nend\n")
    monkeypatch.setattr(page, "PAGE", copy)
    monkeypatch.setattr(callers_run, "LIBRARIES", (library,))

    def call(*words, plaunch="", failure=""):
        def prepare(library, folder):
            if failure:
                raise environments.LibraryEnvironmentError(failure)
            return python(plaunch or said("plaunch"))

        monkeypatch.setattr(callers_run, "prepare_environment", prepare)
        return callers_run.main([*words, f"--folder={tmp_path / 'kept'}"]), copy.read_text()

    return call


def test_the_exit_code_says_whether_the_table_is_still_true(tool, capsys):
    code, text = tool()
    assert (code, "acme" in text) == (1, False)
    assert capsys.readouterr().err == "acme 1.0 | a training: works; in the table: not there\n"
    code, text = tool("--write", "acme")
    assert "| acme 1.0 | a training | works: 2 ranks |\n" in text
    assert tool() == (0, text)
    code, _ = tool(plaunch="exit 1")
    assert code == 1
    assert "acme 1.0 | a training: fails; in the table: works\n" in capsys.readouterr().err


def test_an_environment_that_cannot_be_made_is_a_failure(tool):
    code, text = tool("--write", failure="no such version")
    assert code == 1
    assert "| fails: the environment cannot be made: no such version |" in text


def test_an_unknown_library_is_refused(tool, capsys):
    with pytest.raises(SystemExit) as caught:
        tool("other")
    assert caught.value.code == 2
    assert "unknown: other; choose from acme" in capsys.readouterr().err
