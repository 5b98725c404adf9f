"""The benchmarks run; their results are not checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.programs import run_python

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
BOUND = 100.0  # seconds


@pytest.fixture
def benchmark(plaunch):
    def benchmark(name, *argv):
        return run_python(
            BENCHMARKS / name,
            *argv,
            cwd=plaunch.folder,
            env={**plaunch.environ, "TMPDIR": str(plaunch.folder)},
            timeout=BOUND,
        )

    return benchmark


@pytest.fixture
def measure(plaunch, benchmark):
    """Run a benchmark once; return its result and its output."""

    def measure(name, *argv):
        report = plaunch.folder / "report.json"
        done = benchmark(name, *argv, "--repeat=1", f"--json={report}")
        assert done.returncode == 0, done.stderr
        return json.loads(report.read_text()), done.stdout

    return measure


FAILURE = ["failure: spread of 4 exits", "failure to the last exit"]
ROWS = {
    "supervision.py": [
        "death to exit, SIGKILL",
        "death to restarted, SIGKILL",
        "death to exit, sys.exit",
        "death to restarted, sys.exit",
        "SIGTERM to all gone",
        "tee, 2 x 1000 lines",
        "tee, launcher CPU",
        "idle CPU, 2 workers",
        "idle CPU, 64 workers",
    ],
    "worker_store.py": [
        "launch to all-reduce",
        "the same, --worker-store=rank0",
        "memory of the store host",
    ],
    "restarts.py": [
        "death to restarted",
        *(
            f"{node}: {part}"
            for node in ("the other node", "where it died")
            for part in ("noticing", "stopping", "waiting", "starting", "total")
        ),
    ],
    "control.py": [
        *(
            f"empty job, {kind} the plugin{what}"
            for kind in ("without", "with")
            for what in ("", ", CPU")
        ),
        "plaunchctl status",
        "plaunchctl ps",
    ],
    "engines.py": [
        "local:2, until the first worker's line",
        "local:2, until all workers' lines",
    ],
    "membership.py": [
        "arrival of a node",
        "loss of a node",
        *FAILURE,
        "idle CPU of an agent",
        "threads of an agent",
    ],
}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("supervision.py", ["--no-torchrun", "--lines=1000", "--idle=1"]),
        ("control.py", []),
        ("worker_store.py", ["--no-torchrun"]),
        ("membership.py", ["--idle=1"]),
        ("restarts.py", ["--no-torchrun", "--workers=1"]),
        ("engines.py", ["--no-torchrun", "--nodes=2", "--hosts=0"]),
    ],
)
def test_every_row_is_measured(measure, name, argv):
    if name not in ("supervision.py", "control.py"):
        pytest.importorskip("torch.distributed")
    result, printed = measure(name, *argv)
    assert list(result["measurements"]) == ROWS[name]
    for row, measurement in result["measurements"].items():
        (sample,) = measurement["samples"]["plaunch"]
        # An idle launcher may use no CPU time in such a short time.
        assert sample >= 0 if row.startswith("idle") else sample > 0, row
        assert sample < BOUND or name != "membership.py", row
        assert row in printed


@pytest.mark.parametrize("argv", [["--repeat=0"], ["--only=nothing"], ["--lines=x"]])
def test_supervision_refuses_unknown_rows(benchmark, argv):
    done = benchmark("supervision.py", *argv)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("etcd_server")  # skips without etcd; the benchmark starts its own server
def test_membership_measures_over_etcd(measure):
    result, printed = measure("membership.py", "--backend=etcd-v2", "--only=failure")
    assert result["backend"] == "etcd-v2"
    assert list(result["measurements"]) == FAILURE
    assert "backend etcd-v2\n" in printed


@pytest.mark.exhaustive
@pytest.mark.usefixtures("etcd_server")
def test_startup_measures_a_job_over_etcd(measure):
    result, printed = measure("startup.py", "--etcd", "--no-torchrun")
    samples = {
        name: measurement["samples"]["plaunch"][0]
        for name, measurement in result["measurements"].items()
    }
    assert samples["peak memory, empty job"] < samples["peak memory, etcd"] < 100
    assert samples["empty job, etcd"] > 0
    # This holds for every launch, however busy the machine is.
    assert result["heavy_imports"] == []
    assert result["heavy_imports_etcd"] == ["grpc"]
    assert "empty job, etcd: memory at most 60 MB" in printed


def test_rendezvous_prints_one_object(benchmark):
    done = benchmark("rendezvous.py", "--backend=memory", "--nodes=3", "--json", "--check")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["backend"], result["nodes"]) == ("memory", 3)
    assert [one["nodes"] for one in result["rounds"]] == [3, 64]
    for one in (result, *result["rounds"]):
        assert one["seconds"] > 0
        # A single node makes a few requests; all nodes together make no more.
        assert 3 <= one["ops_per_node"] == one["max_ops_per_node"] < 20
        assert one["leader_ops"] > one["ops_per_node"]
        assert 0 < one["bytes_read_per_node"] < 5000
        assert 0 < one["bytes_written_per_node"] < 5000


@pytest.mark.needs("libuv")
def test_rendezvous_measures_torch_beside_plaunch(benchmark):
    pytest.importorskip("torch")
    argv = ("--backend=memory", "--nodes=2", "--peer=torch", "--peer-nodes=2")
    done = benchmark("rendezvous.py", *argv, "--json")
    assert done.returncode == 0, done.stderr
    peer = json.loads(done.stdout)["peer"]
    assert (peer["backend"], peer["nodes"]) == ("torch", 2)
    assert peer["ops_per_node"] > 0
    assert "torch        2 " in benchmark("rendezvous.py", *argv).stdout


@pytest.mark.usefixtures("etcd_server")
def test_rendezvous_measures_over_etcd_and_reports_if_torch_cannot(benchmark):
    pytest.importorskip("torch")
    argv = ("--backend=etcd-v2", "--nodes=2", "--peer=torch", "--peer-nodes=2", "--check")
    done = benchmark("rendezvous.py", *argv, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["backend"], result["nodes"]) == ("etcd-v2", 2)
    assert [one["nodes"] for one in result["rounds"]] == [2, 64]
    # torch needs an unmaintained client, and a server older than 3.6.
    peer = result["peer"]
    assert peer["ops_per_node"] > 0 if "nodes" in peer else "\n" not in peer["problem"]


@pytest.mark.parametrize(
    "argv", [["--nodes=0"], ["--backend=nothing"], ["--conf=x"], ["--peer=nobody"]]
)
def test_rendezvous_refuses_unusable_options(benchmark, argv):
    done = benchmark("rendezvous.py", *argv)
    assert done.returncode == 2
    assert done.stdout == ""
    assert argv[0].partition("=")[2] in done.stderr or argv[0] in done.stderr


@pytest.mark.slow
def test_hangs_measures_looks(benchmark):
    done = benchmark("hangs.py", "--workers=1", "--seconds=1")
    assert done.returncode == 0, done.stderr
    assert "with --hang-timeout=10m " in done.stdout


@pytest.mark.exhaustive
@pytest.mark.slow
def test_hangs_counts_alarms(benchmark):
    done = benchmark("hangs.py", "--false-alarms", "--runs=1")
    assert done.returncode == 0, done.stderr
    assert "of 1 runs with a false alarm\n" in done.stdout


@pytest.mark.slow
def test_double_starts_always_have_one_host(measure):
    result, _ = measure("double_starts.py", "--elections=20", "--launches=1")
    assert len(result["goals"]) == 5
    assert all(result["goals"].values())


def test_heartbeats_measures_one_call(benchmark):
    done = benchmark("heartbeats.py", "--count=1000")
    assert done.returncode == 0, done.stderr
    assert "| `heartbeat(step, total)` | " in done.stdout
