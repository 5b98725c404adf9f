"""Real bindings: the affinities of workers and of the launcher."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing.forkserver
import os
import sys
import textwrap
from multiprocessing import resource_tracker

import pytest
from plaunch import LaunchConfig, elastic_launch
from plaunch.errors import UsageError, WorkerStartError
from plaunch.process import start_processes
from plaunch_devices import AffinityMode, DeviceBinder, NumaOptions
from plaunch_torchrun.elastic.multiprocessing import SubprocessHandler

from helpers.hooks import plugin_of
from helpers.machines import Machine
from helpers.programs import run_python

BOUND = 60.0  # seconds within which everything here has long happened

OWN = sorted(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.skipif(len(OWN) < 2, reason="there is one CPU, to which everything is bound"),
    pytest.mark.filterwarnings(
        # Python 3.12 on; the threads are those of the test runner's own time-out.
        "ignore:This process .* is multi-threaded:DeprecationWarning"
    ),
]

# A worker that writes down where it may run, before it imports anything that takes long.
LOOK = "import os, sys; print(sorted(os.sched_getaffinity(0)), file=open(sys.argv[1], 'a'))"


@pytest.fixture(autouse=True)
def _launcher_is_never_bound():
    def affinities():
        found = {}
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                found[task] = os.sched_getaffinity(int(task))
        return found

    before = affinities()
    yield
    after = affinities()
    assert {task: after[task] for task in before if task in after} == {
        task: cpus for task, cpus in before.items() if task in after
    }
    assert sorted(os.sched_getaffinity(0)) == OWN


@pytest.fixture
def functions(monkeypatch):
    """The module of worker functions, where a new process finds it too."""
    monkeypatch.syspath_prepend(os.path.join(os.path.dirname(__file__), "modules"))
    return importlib.import_module("binding_functions")


@pytest.fixture
def binder(tmp_path):
    """Binds to a machine of two nodes with a GPU each, which are two CPUs of this one."""
    gpus = {"0000:1b:00.0": 0, "0000:9d:00.0": 1}
    root = Machine({0: str(OWN[0]), 1: str(OWN[1])}, {}, gpus=gpus).write(tmp_path / "machine")

    def make(options="node", **changes):
        return DeviceBinder(options, environ={}, root=root, **changes)

    return make


def start(entrypoint, args, binder, **options):
    """Start workers that are bound."""
    return start_processes(
        "bound", entrypoint, args, binder=binder, handle_signals=False, **options
    )


def run(*given, **options):
    """Run them to their end."""
    context = start(*given, **options)
    result = context.wait(BOUND)
    context.close()
    assert result is not None
    assert not result.is_failed(), result.failures
    return result.return_values


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_programs_are_bound_from_their_first_line(binder, tmp_path):
    shown = {rank: tmp_path / f"rank{rank}" for rank in range(2)}
    args = {rank: ("-c", LOOK, str(path)) for rank, path in shown.items()}
    run(sys.executable, args, binder())
    assert [lines(shown[rank]) for rank in range(2)] == [[[OWN[0]]], [[OWN[1]]]]


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_functions_are_bound_before_their_module_is_imported(binder, functions, start_method):
    values = run(functions.look, {0: (), 1: ()}, binder(), start_method=start_method)
    for rank, (at_import, now) in values.items():
        assert now == {OWN[rank]}
        if start_method != "fork":  # which has the launcher's modules
            assert at_import == {OWN[rank]}
    for pid in (resource_tracker._resource_tracker._pid, _fork_server_pid()):
        if pid is not None:  # others use them, too
            assert sorted(os.sched_getaffinity(pid)) == OWN


def _fork_server_pid():
    return multiprocessing.forkserver._forkserver._forkserver_pid


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_are_bound_before_the_launchers_script_is_imported(tmp_path, start_method):
    if start_method == "forkserver" and sys.version_info >= (3, 14):
        pytest.skip("from Python 3.14 on, its fork server imports the script")
    script = tmp_path / "main.py"
    shown = tmp_path / "shown"
    script.write_text(
        textwrap.dedent(f"""
            import os
            from plaunch.process import start_processes
            if __name__ == "__mp_main__":  # what a worker makes of it
                with open({str(shown)!r}, "a") as file:
                    print(sorted(os.sched_getaffinity(0)), file=file)

            def work(number):
                return number

            if __name__ == "__main__":
                context = start_processes(
                    "bound", work, {{0: (0,), 1: (1,)}}, start_method={start_method!r},
                    numa_options="exclusive",
                )
                print(context.wait({BOUND}).return_values, sorted(os.sched_getaffinity(0)))
                context.close()
        """)
    )
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = run_python(script, timeout=BOUND * 2, env=environ)
    assert done.stdout == f"{{0: 0, 1: 1}} {OWN}\n", done.stderr
    bound = sorted(map(tuple, lines(shown)))
    assert len(bound) == 2
    assert not set(bound[0]) & set(bound[1])
    assert set(bound[0]) | set(bound[1]) <= set(OWN)


@pytest.mark.parametrize("mode", [mode.value for mode in AffinityMode])
def test_a_launcher_that_may_use_one_cpu_binds_to_that(tmp_path, mode):
    shown = tmp_path / "shown"
    code = textwrap.dedent(f"""
        import os, sys
        from plaunch.process import start_processes
        os.sched_setaffinity(0, {{{OWN[1]}}})
        context = start_processes(
            "bound", sys.executable, {{0: ("-c", {LOOK!r}, {str(shown)!r})}}, numa_options={mode!r}
        )
        context.wait({BOUND})
        context.close()
        print(sorted(os.sched_getaffinity(0)))
    """)
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = run_python("-c", code, timeout=BOUND * 2, env=environ)
    assert done.stdout == f"[{OWN[1]}]\n", done.stderr
    assert lines(shown) == [[OWN[1]]]


def test_a_handler_by_itself_binds_its_program(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    handler = SubprocessHandler(
        sys.executable, ("-c", LOOK, tmp_path / "shown"), {}, None, None, 0, NumaOptions("node")
    )
    assert handler.proc.wait(BOUND) == 0
    assert set(lines(tmp_path / "shown")[0]) <= set(OWN)


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_what_the_system_refuses_is_an_error(binder, functions, start_method, monkeypatch):
    none_of_this_machine = 1023
    real = DeviceBinder.plan

    def plan(self, nprocs):
        from dataclasses import replace

        cpus = frozenset({none_of_this_machine})
        return {r: replace(b, cpus=cpus) for r, b in real(self, nprocs).items()}

    monkeypatch.setattr(DeviceBinder, "plan", plan)
    with pytest.raises(WorkerStartError, match=r"not bind local rank 0 to CPUs 1023: .*Invalid"):
        start(functions.look, {0: ()}, binder(), start_method=start_method)
    options = NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    values = run(functions.look, {0: ()}, binder(options), start_method=start_method)
    assert sorted(values[0][1]) == OWN


def test_nothing_is_started_if_a_worker_cannot_be_bound(binder, tmp_path):
    args = {rank: ("-c", LOOK, str(tmp_path / "shown")) for rank in range(2)}
    with pytest.raises(UsageError, match="--numa-binding=node is not possible: local rank 1's"):
        start(sys.executable, args, binder(allowed=lambda: {OWN[0]}))
    assert not (tmp_path / "shown").exists()


def test_workers_that_are_started_again_are_bound_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    again = f"{LOOK}\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(1)\n"
    options = NumaOptions(AffinityMode.EXCLUSIVE)
    config = LaunchConfig(1, 1, 2, max_restarts=1, numa_options=options)
    shown = tmp_path / "shown${local_rank}"
    elastic_launch(config, sys.executable)("-c", again, str(shown))
    both = [lines(tmp_path / f"shown{rank}") for rank in range(2)]
    for rank in range(2):
        assert both[rank]
        assert all(entry == both[rank][0] for entry in both[rank])
    assert len(both[0]) + len(both[1]) >= 3
    assert not set(both[0][0]) & set(both[1][0])


def test_an_interruption_while_a_worker_starts_leaves_the_launcher_as_it_was(binder):
    binding = binder().plan(2)[1]

    def start():
        with binding.applied():
            assert os.sched_getaffinity(0) == {OWN[1]}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start()
    assert sorted(os.sched_getaffinity(0)) == OWN


def test_a_launch_shows_workers_the_chosen_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    seen = []

    def look(worker, env):
        seen.append((worker.local_rank, env["LOCAL_RANK"], env["CUDA_VISIBLE_DEVICES"]))

    config = LaunchConfig(1, 1, 2, devices=[1, "3"], virtual_local_rank=True)
    code = (
        "import os, sys; print(os.environ['LOCAL_RANK'], os.environ['CUDA_VISIBLE_DEVICES'], "
        "os.environ['LOCAL_WORLD_SIZE'], file=open(sys.argv[1], 'w'))"
    )
    launch = elastic_launch(config, sys.executable, plugins=[plugin_of(plaunch_worker_env=look)])
    launch("-c", code, str(tmp_path / "rank${local_rank}"))
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["0 5 2\n", "0 7 2\n"]
    assert seen == [(0, "0", "5"), (1, "0", "7")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices": ["1", "2"]}, "--devices names 2, but CUDA_VISIBLE_DEVICES is '4,5'"),
        ({"devices": ["1", "01"]}, "named more than once: 1"),
        ({"virtual_local_rank": True, "nproc_per_node": 3}, "local rank 2 has no device"),
        ({"numa_options": "nodes"}, "affinity mode 'nodes' is unknown"),
        ({"numa_options": "exclusive", "nproc_per_node": 1000}, "is not possible"),
    ],
)
def test_a_node_that_cannot_start_its_workers_does_not_join(changes, said, monkeypatch):
    is_without = "nproc_per_node" in changes and "numa_options" in changes
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "" if is_without else "4,5")
    moments = []
    hooks = plugin_of(plaunch_before_rendezvous=lambda: moments.append("it has joined"))

    def launch():
        config = LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, **changes})
        elastic_launch(config, "true", plugins=[hooks])()

    with pytest.raises(UsageError, match=said):
        launch()
    assert moments == []
