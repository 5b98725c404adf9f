"""`plaunch --doctor` as users run it."""

from __future__ import annotations

import logging
import os

import pytest
from plaunch import hookimpl
from plaunch.cli import program
from plaunch.cli.invocation import Invocation, find_command_despite_errors
from plaunch.cli.parser import parse
from plaunch.cli.program import main
from plaunch.doctor import DoctorContext, Finding, Status
from plaunch.errors import PluginError
from plaunch.scheduling import Allocation
from plaunch_doctor import command as doctor
from plaunch_doctor.checks import CHECKS
from plaunch_doctor.command import run_doctor
from plaunch_doctor.installation import plugins_check
from plaunch_doctor.listing import BLOCKED, BROKEN, PluginStatus

from helpers.faults import raising
from helpers.hooks import plugin_of
from helpers.programs import run_python
from helpers.site import Site


@pytest.fixture(autouse=True)
def no_choice_of_a_store(monkeypatch):
    """A finding says what USE_LIBUV does."""
    monkeypatch.delenv("USE_LIBUV", raising=False)


@pytest.fixture
def healthy(monkeypatch):
    """Skip the checks of the real node."""
    monkeypatch.setattr(doctor, "CHECKS", {})
    monkeypatch.setattr("plaunch_devices.doctor.check_accelerators", lambda context: ())
    monkeypatch.setattr("plaunch_logs_default.doctor.find_stale_folders", lambda *given: [])
    monkeypatch.setattr(doctor, "list_plugins", lambda *given, **named: [])


def lines_of(capsys, status):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(status)]


def test_a_node_without_problems(healthy, capsys):
    assert main(["--doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("plaunch ")
    assert "ok       settings  nodes 1:1, 1 worker(s) on this one, backend static\n" in out
    assert out.endswith("no problems, no broken checks, no warnings, 2 ok\n")


@pytest.mark.parametrize(
    ("argv", "environ", "said"),
    [
        (["--doctor", "gone.py"], {}, "'gone.py' does not exist"),
        (["--doctor", "--nnodes=x"], {}, "--nnodes is 'x'"),
        (["--doctor", "--rdzv-backend=gossip", "--rdzv-endpoint=h:1"], {}, "'gossip' is unknown"),
        (["--doctor", "--signal-policy=shout"], {}, "'shout' is unknown"),
        (["--nproc=2", "--doctor"], {}, "there is no option --nproc"),
        (["--doctor", "--max-restarts=many"], {}, "'many' is not a whole number"),
        (["--doctor", "--nnodes=2"], {}, "--master-addr with that of node 0"),
        (["--doctor", "--on-hang=stop"], {}, "--on-hang=stop needs --hang-timeout"),
        (["--doctor"], {"PET_NODE_RANK": "first"}, "PET_NODE_RANK"),
    ],
)
def test_an_unusable_option_is_a_finding(healthy, capsys, monkeypatch, argv, environ, said):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(argv) == 1
    (line,) = lines_of(capsys, "problem")
    assert said in line


def test_options_of_the_script_are_ignored(healthy, capsys):
    assert main(["--nproc=2", "train.py", "--doctor"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["--bad", "--doctor"], True),
        (["--nnodes", "x", "--doctor", "train.py"], True),
        (["--bad", "train.py", "--doctor"], False),
        (["--bad", "--", "train", "--doctor"], False),
        (["--bad"], False),
    ],
)
def test_where_the_option_must_stand(argv, answer):
    assert (find_command_despite_errors(argv, {}) is not None) is answer


def test_a_plugin_that_breaks_the_command_line_is_reported(healthy, capsys, monkeypatch):
    monkeypatch.setattr(program, "parse", raising(PluginError("plugin 'acme' failed: no file")))
    assert main(["--doctor"]) == 1
    assert "plugin 'acme' failed: no file" in lines_of(capsys, "problem")[0]


def test_warnings_about_options_are_findings(healthy, capsys):
    assert main(["--doctor", "--standalone", "--rdzv-id=x"]) == 0
    captured = capsys.readouterr()
    assert "warning  settings  --standalone overrides --rdzv-id" in captured.out
    assert captured.err == ""
    assert logging.getLogger("plaunch").filters == []


def test_values_of_a_scheduler_are_part_of_the_settings(healthy, capsys, monkeypatch):
    allocation = Allocation(nnodes=4, endpoint="node0:29400")
    plugin = plugin_of(plaunch_schedulers=lambda: {"acme": lambda environ: allocation})
    assert main(["--doctor", "--scheduler=acme"], plugins=[plugin]) == 0
    out = capsys.readouterr().out
    assert "ok       scheduler  " in out
    assert "nodes 4:4" in out


class Fan:
    """Returns given findings."""

    def __init__(self, *findings, error=None):
        self.findings, self.error = findings, error

    @hookimpl
    def plaunch_doctor_checks(self, context):
        self.context = context
        if self.error is not None:
            raise self.error
        return self.findings or None


def test_a_plugin_adds_findings_and_gets_the_settings(healthy, capsys):
    fan = Fan(Finding(Status.PROBLEM, "fan", "it stands still", "oil it"))
    assert main(["--doctor", "--nproc-per-node=3"], plugins=[fan]) == 1
    assert lines_of(capsys, "problem") == ["problem  fan       it stands still"]
    assert fan.context.nproc == 3
    assert fan.context.options["nproc_per_node"] == "3"


def test_a_plugin_without_findings(healthy):
    assert main(["--doctor"], plugins=[Fan()]) == 0


def test_the_logs_spec_adds_findings(healthy, capsys, monkeypatch):
    found = ["/tmp/plaunch_a", "/tmp/plaunch_b"]
    monkeypatch.setattr("plaunch_logs_default.doctor.find_stale_folders", lambda *given: found)
    assert main(["--doctor"]) == 0
    (line,) = lines_of(capsys, "warning")
    assert "2 temporary folder(s) of launchers that were killed: /tmp/plaunch_a" in line


def test_a_plugin_whose_check_fails_is_named(healthy, capsys):
    assert main(["--doctor"], plugins=[Fan(error=OSError("no fan"))]) == 1
    (line,) = lines_of(capsys, "broken")
    assert "Fan" in line
    assert "OSError: no fan" in line


def test_a_broken_plugin_is_reported_with_everything_else(monkeypatch, capsys):
    misspelt = plugin_of(plaunch_doctor_check=lambda context: ())
    monkeypatch.setattr(doctor, "CHECKS", {"x": lambda c: [Finding(Status.OK, "x", "made")]})
    # Other tests' folders may be there, and a longer heading moves all columns.
    monkeypatch.setattr("plaunch_logs_default.doctor.find_stale_folders", lambda *given: [])
    assert main(["--doctor"], plugins=[misspelt]) == 1
    out = capsys.readouterr().out
    assert "plaunch_doctor_check" in out
    assert "ok       x " in out
    assert "ok       settings  nodes 1:1" in out


def test_settings_that_take_too_long_are_abandoned(healthy, capsys, gate):
    slow = plugin_of(plaunch_device_counts=lambda: {"slow": lambda: gate.wait(60) and 1})
    args = parse(["--doctor", "--nproc-per-node=slow"], {})
    assert run_doctor(Invocation(args, args.table, [slow]), 0.3) == 1
    assert "took over 0.3 s" in lines_of(capsys, "problem")[0]


def status(kind="rendezvous", name="x", status="ready", **more):
    return PluginStatus(kind, name, "acme", "1.0", status, **more)


@pytest.mark.parametrize(
    ("row", "chosen", "expected"),
    [
        (status(), {}, []),
        (status(status=BLOCKED), {}, []),
        (status(status=BROKEN, detail="no grpc"), {}, [Status.WARNING]),
        (status(status=BROKEN, detail="no grpc"), {"rendezvous": "x"}, [Status.PROBLEM]),
        (status(status=BROKEN), {"rendezvous": "acme:x"}, [Status.PROBLEM]),
        (status(status=BROKEN), {"logs_specs": "x"}, [Status.WARNING]),
        (status("plugin", status=BROKEN), {}, [Status.PROBLEM]),
        (status(rivals=("other",)), {}, []),
        (status(rivals=("other",)), {"rendezvous": "x"}, [Status.PROBLEM]),
        (status("plugin", rivals=("other",)), {}, [Status.PROBLEM]),
    ],
)
def test_only_used_plugins_are_problems(row, chosen, expected):
    *found, summary = plugins_check(lambda: [row], chosen)(DoctorContext())
    assert [finding.status for finding in found] == expected
    assert all("acme" in finding.found and finding.advice for finding in found)
    assert (summary.status, "acme 1.0" in summary.found) == (Status.OK, True)


# --- the program ----------------------------------------------------------------------------------


def test_the_program_checks_this_node_with_a_broken_plugin_installed(tmp_path):
    offers = {"plaunch.plugins": {"bad": "acme_doctor_missing"}}
    Site(tmp_path, "").install("acme_doctor", offers, metadata_name="acme-doctor")
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run_python("-m", "plaunch", "--doctor", "train.py", cwd=tmp_path, env=environ)
    out = done.stdout
    assert done.returncode == 1
    assert done.stderr == ""
    assert "no launch can start" in out
    assert "plugin:bad of acme-doctor 1.0 is broken" in out
    headings = {line[9:].split("  ")[0].strip() for line in out.splitlines()}
    assert {"interpreter", "host name", "endpoint", "clock", "leftovers", "memory"} <= headings
    assert not [line for line in out.splitlines() if line.startswith("broken")]
    assert not (tmp_path / "started").exists()


def test_the_doctor_starts_without_torch_and_without_heavy_packages(tmp_path):
    code = (
        "import sys; from plaunch.cli.program import main; code = main(['--doctor']);"
        "heavy = {'torch', 'grpc', 'etcd3', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_check_is_in_the_documentation():
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    for name in CHECKS:
        assert f"| {name} |" in page
