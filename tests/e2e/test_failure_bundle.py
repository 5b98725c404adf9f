"""Failed launches, and the bundle of each failure."""

from __future__ import annotations

import json
import signal
import zipfile

import pytest

from helpers.ports import free_port
from helpers.programs import run_python

# Both are written by programs that may time out on a busy machine.
FROM_PROGRAMS = {"plan.txt", "doctor.txt"}

SECRETS = {
    "HF_TOKEN": "hf-in-the-environment",
    "PLAUNCH_RDZV_TOKEN": "0123456789-of-the-launcher",
    "ARGUMENT": "in-the-arguments",
    "OPTION": "in-the-options",
}

TALKING = f"""
import os, sys, time
from plaunch.process import record

@record
def main():
    rank = int(os.environ["RANK"])
    for stream in (sys.stdout, sys.stderr):
        for number in range(1500):
            print(f"rank {{rank}} line {{number}}", file=stream)
        print(os.environ["HF_TOKEN"], {[*SECRETS.values()]}, file=stream, flush=True)
    if rank == 1:
        open("up", "w").close()
        time.sleep(60)
    while not os.path.exists("up"):
        time.sleep(0.01)
    raise ValueError("bad batch " + {SECRETS["HF_TOKEN"]!r})

main()
"""


def read(path):
    """Return the files of a bundle by name; output of programs may be missing if that is noted."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    for name in FROM_PROGRAMS - files.keys():
        assert f"\n{name}: " in files["contents.txt"]
    return files


def find(folder):
    """All bundles below a folder, by name; there must be no partial files."""
    assert list(folder.rglob(".failure*")) == []
    return {path.name: path for path in sorted(folder.rglob("*.zip"))}


@pytest.fixture
def loud(plaunch):
    plaunch.environ["LOGLEVEL"] = "INFO"


def told(done):
    """Return the launcher's lines about bundles, in order."""
    return [line for line in done.stderr.splitlines() if "failure bundle" in line]


@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize("asked", [[], ["--failure-bundles=last"]], ids=["unasked", "asked"])
def test_a_script_that_fails(plaunch, asked):
    script = plaunch.write("train.py", TALKING)
    words = ["--nproc-per-node=2", "--redirects=3", "--log-dir=logs", *asked]
    words += [f"--log-line-prefix-template=[password={SECRETS['OPTION']}]"]
    environ = {name: SECRETS[name] for name in ("HF_TOKEN", "PLAUNCH_RDZV_TOKEN")}
    done = plaunch.run(*words, script, "--api-key", SECRETS["ARGUMENT"], **environ)
    assert done.returncode == 1, done.stderr
    ((name, path),) = find(plaunch.folder).items()
    assert name == "failure-0.zip"
    assert path.parent.parent == plaunch.folder / "logs"
    assert told(done) == [f"plaunch: failure bundle: {path} (for plaunch-report)"]
    files = read(path)
    kinds = {"report.txt", "events.jsonl", "versions.txt", "contents.txt"}
    logs = {f"logs/rank-{rank}-{of}.log" for rank in (0, 1) for of in ("stdout", "stderr")}
    others = {"error-files/rank-0.json", "kernel.txt", *FROM_PROGRAMS}
    assert kinds | logs <= files.keys() <= kinds | logs | others
    assert files["report.txt"].startswith(f"{script} FAILED: rank 0 on ")
    assert "ValueError: bad batch <withheld>" in files["report.txt"]
    assert "Stopped by plaunch: rank 1 (SIGTERM)" in files["report.txt"]
    assert "bad batch" in files["error-files/rank-0.json"]
    lines = files["logs/rank-1-stdout.log"].splitlines()
    assert len(lines) == 1000
    assert lines[0] == "rank 1 line 501"
    events = [json.loads(line)["name"] for line in files["events.jsonl"].splitlines()]
    assert events[0] == "plaunch.launcher.started"
    assert events[-1] == "plaunch.launcher.finished"
    if "plan.txt" in files:
        assert "--nproc-per-node            2" in files["plan.txt"]
        assert "command line" in files["plan.txt"]
        assert f"job {path.parent.name.rpartition('_')[0]!r}:" in files["plan.txt"]
    if "doctor.txt" in files:
        assert "settings         nodes 1:1, 2 worker(s) on this one" in files["doctor.txt"]
    for name, text in files.items():
        for secret in SECRETS.values():
            assert secret not in text, name


@pytest.mark.usefixtures("loud")
def test_a_worker_that_is_killed(plaunch):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = plaunch.run("--failure-bundle=out/new", plaunch.write("train.py", kill))
    assert done.returncode == 128 + signal.SIGKILL
    (path,) = find(plaunch.folder).values()
    assert path == plaunch.folder / "out" / "new" / "failure-0.zip"
    files = read(path)
    assert "killed by SIGKILL (signal 9)" in files["report.txt"]
    assert (
        "\nlogs: there are none: --redirects or --tee writes output to files"
        in files["contents.txt"]
    )
    assert "\nerror-files: no worker wrote one" in files["contents.txt"]


ATTEMPTS = """
import os, sys
sys.exit(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}")
"""


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_runs_with_a_folder_get_a_bundle_by_default(plaunch, level):
    words = ["--max-restarts=1", "--redirects=3"]
    done = plaunch.run(*words, plaunch.write("train.py", ATTEMPTS), LOGLEVEL=level, TMPDIR=".")
    assert done.returncode == 1
    ((name, path),) = find(plaunch.folder).items()
    assert name == "failure-1.zip"
    files = read(path)
    assert files["logs/rank-0-stderr.log"] == "attempt 1\n"
    events = [json.loads(line) for line in files["events.jsonl"].splitlines()]
    names = [event["name"] for event in events]
    assert (names[0], names[-1]) == ("plaunch.launcher.started", "plaunch.launcher.finished")
    assert names.count("plaunch.worker.exited") == 2
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)
    assert events[-1]["metadata"]["outcome"] == "failed"
    # The lines about the restart are not repeated.
    assert done.stderr.count("restarted in") == (level == "INFO")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, ["-p", "no:failure_bundle", "--log-dir=logs"]),
        (9, ["-p", "failure_bundle"]),
        (111, ["--nnodes=2", "--master-addr=127.0.0.1", "--rdzv-conf=join_timeout=0.5"]),
    ],
    ids=["blocked", "without a folder", "never met"],
)
def test_runs_without_a_folder_get_no_bundle(plaunch, code, words):
    if "-p" not in words:
        words = ["--log-dir=logs", *words]
    words = [*words, f"--master-port={free_port()}"]
    done = plaunch.run(*words, plaunch.write("train.py", "import sys; sys.exit(9)"))
    assert done.returncode == code, done.stderr
    assert find(plaunch.folder) == {}
    assert told(done) == []


@pytest.mark.parametrize(("which", "attempts"), [("all", [0, 1, 2]), ("last", [2]), ("none", [])])
def test_restarts(plaunch, which, attempts):
    words = ["--max-restarts=2", "--monitor-interval=0.01", "--redirects=2", "--log-dir=logs"]
    script = plaunch.write("train.py", ATTEMPTS)
    done = plaunch.run(*words, script, PET_FAILURE_BUNDLES=which)
    assert done.returncode == 1
    found = find(plaunch.folder)
    assert [*found] == [f"failure-{attempt}.zip" for attempt in attempts]
    for attempt in attempts:
        files = read(found[f"failure-{attempt}.zip"])
        assert f"attempt {attempt}\n" in files["report.txt"]
        assert f"/attempt_{attempt}/0/stderr.log\n" in files["report.txt"]
        assert files["logs/rank-0-stderr.log"] == f"attempt {attempt}\n"


@pytest.mark.usefixtures("loud")
def test_nodes_that_do_not_meet(plaunch):
    words = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    words += ["--rdzv-conf=join_timeout=0.5", "--failure-bundle=out"]
    done = plaunch.run(*words, plaunch.write("train.py", ""))
    files = read(find(plaunch.folder)["failure-0.zip"])
    reason = files["report.txt"].removeprefix(f"{plaunch.folder}/train.py: ").strip()
    assert f"plaunch: {reason}\n" in done.stderr


FUNCTION = """
import sys
from plaunch import LaunchConfig, elastic_launch
from plaunch.process import ChildFailedError

def train(rank):
    raise RuntimeError("worker " + rank)

if __name__ == "__main__":
    options = {"failure_bundle": "out", "failure_bundles": "all"}
    config = LaunchConfig(1, 1, 2, max_restarts=1, start_method=sys.argv[1], options=options)
    try:
        elastic_launch(config, train)("one")
    except ChildFailedError as error:
        print(error.exit_code)
"""


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_functions(plaunch, start_method):
    script = plaunch.write("launch.py", FUNCTION)
    done = run_python(script, start_method, cwd=plaunch.folder, env=plaunch.environ)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    found = find(plaunch.folder)
    assert [*found] == ["failure-0.zip", "failure-1.zip"]
    for path in found.values():
        files = read(path)
        assert "RuntimeError: worker one" in files["report.txt"]
    assert "start_method = " + repr(start_method) in files["plan.txt"]
    error_files = [json.loads(files[name]) for name in files if name.startswith("error-files/")]
    assert error_files
    for error_file in error_files:
        assert error_file["message"]["message"] == "RuntimeError: worker one"


def test_a_success_leaves_nothing(plaunch):
    words = ["--failure-bundle=out", "--failure-bundles=all", "--log-dir=logs", "--max-restarts=1"]
    done = plaunch.run(*words, plaunch.write("train.py", ""))
    assert (done.returncode, done.stderr) == (0, "")
    assert find(plaunch.folder) == {}
    assert not (plaunch.folder / "out").exists()


def test_a_stop_makes_no_bundle(plaunch):
    script = plaunch.write("train.py", "import time; print('up', flush=True); time.sleep(60)")
    with plaunch.start("--failure-bundle=out", script) as process:
        assert process.stdout.readline() == "up\n"
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not (plaunch.folder / "out").exists()


@pytest.mark.parametrize(
    ("words", "fails", "expected"),
    [
        (["--log-dir=logs"], False, set()),
        (["--log-dir=logs", "--failure-bundles=none"], True, set()),
        (["--failure-bundles=all"], False, {"extension", "history"}),
        ([], True, set()),
    ],
)
def test_successful_launches_do_not_import_it(plaunch, words, fails, expected):
    script = plaunch.write("train.py", f"import sys; sys.exit({int(fails)})")
    argv = ["-X", "importtime", "-m", "plaunch", *words, script]
    shown = run_python(*argv, env=plaunch.environ, cwd=plaunch.folder)
    assert shown.returncode == fails
    modules = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    package = "plaunch_report.failure_bundle."
    own = {name.removeprefix(package) for name in modules if name.startswith(package)}
    assert own == expected


@pytest.mark.parametrize(
    ("word", "environ", "problem"),
    [
        ("--failure-bundles=some", {}, "'some' is not one of last, all, none"),
        ("--failure-bundle=file", {}, "--failure-bundle is 'file', which is not a folder"),
        ("--failure-bundle=x.zip", {}, "so it should be a folder; give another folder"),
        ("--failure-bundles=all", {"PET_FAILURE_BUNDLE": "file/x"}, "is 'file/x', and '"),
    ],
)
def test_bad_input(plaunch, word, environ, problem):
    (plaunch.folder / "file").touch()
    script = plaunch.write("train.py", "open('started', 'w')")
    done = plaunch.run(word, script, **environ)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert problem in line
    assert not (plaunch.folder / "started").exists()


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.usefixtures("loud")
def test_a_file_that_cannot_grow_is_one_line(plaunch):
    script = plaunch.write("train.py", "import sys; sys.exit(7)")
    argv = ["-c", LIMITED, "-m", "plaunch", "--failure-bundle=out", script]
    done = run_python(*argv, env=plaunch.environ, cwd=plaunch.folder)
    assert done.returncode == 7
    assert "plaunch: rank 0 on " in done.stderr
    where = plaunch.folder / "out"
    assert told(done) == [f"plaunch: no failure bundle is written: {where}: File too large"]
    assert "Traceback" not in done.stderr
    assert list(where.iterdir()) == []


def test_the_page_of_a_bundle(plaunch):
    plaunch.run("--failure-bundle=out", plaunch.write("train.py", "import sys; sys.exit(3)"))
    done = run_python("-m", "plaunch_report", plaunch.folder / "out" / "failure-0.zip", "--json")
    facts = json.loads(done.stdout)
    assert (facts["outcome"], facts["exit_code"]) == ("failed", 3)
    assert facts["first_cause"]["global_rank"] == 0
