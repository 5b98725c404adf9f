"""The doctor's check of which modules prevent preloading."""

from __future__ import annotations

import os

import pytest
from plaunch.doctor import DoctorContext, Status
from plaunch_preload.plugin import plaunch_doctor_checks

MODULES = {
    "fine": "",
    "fails": "raise ValueError('no')",
    "reads": "import os; os.environ.get('RANK')",
    "reads_all": "import os; dict(os.environ)",
    "runs": "import threading as t, time; t.Thread(None, time.sleep, 'mine', (60,)).start()",
}
FOUND = {
    "fine": (Status.OK, "fine is imported in 0."),
    "fails": (Status.WARNING, "fails: cannot be imported: ValueError: no"),
    "reads": (Status.WARNING, "reads: reads:1 reads RANK, which is another for each worker"),
    "reads_all": (Status.WARNING, "reads_all: reads_all:1 reads all variables"),
    "runs": (Status.WARNING, "runs: 1 thread(s) run: mine"),
    "train": (Status.WARNING, "train: is the script itself"),
}


def check(**options):
    return list(plaunch_doctor_checks(DoctorContext(options=options, environ=dict(os.environ))))


def test_each_module_is_checked(tmp_path):
    for name, source in {**MODULES, "train": ""}.items():
        (tmp_path / f"{name}.py").write_text(source)
    script = str(tmp_path / "train.py")
    findings = check(preload=",".join(FOUND), training_script=script)
    assert len(findings) == len(FOUND)
    for finding, (status, text) in zip(findings, FOUND.values(), strict=True):
        assert (finding.what, finding.status) == ("preload", status)
        assert finding.found.startswith(text)
        assert bool(finding.advice) == (status is not Status.OK)


@pytest.mark.parametrize(
    ("options", "environ", "status", "said"),
    [
        ({"preload": ""}, {}, Status.PROBLEM, "names no module"),
        ({"preload": "a-b"}, {}, Status.PROBLEM, "'a-b'"),
        ({"preload": "json"}, {"PLAUNCH_PRELOAD_TIMEOUT": "x"}, Status.PROBLEM, "'x'"),
        ({"preload": "json", "no_python": True}, {}, Status.WARNING, "not Python"),
    ],
)
def test_general_problems_are_reported_without_a_test(monkeypatch, options, environ, status, said):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (finding,) = check(**options)
    assert finding.status is status
    assert said in finding.found


def test_without_the_option_there_is_no_finding():
    assert check() == []
