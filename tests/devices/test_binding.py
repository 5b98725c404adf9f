"""Bindings on machines that exist only as files."""

from __future__ import annotations

import logging
import os
import tempfile
from inspect import signature
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plaunch.errors import UsageError
from plaunch_devices import Accelerator, AffinityMode, DeviceBinder, NumaOptions
from plaunch_devices.binder import describe_bindings
from plaunch_devices.topology import Topology, format_cpus, parse_cpus

from helpers.machines import Machine

MODES = [mode.value for mode in AffinityMode]


GPUS = ["1b", "3d", "4e", "5f", "9d", "be", "cf", "df"]

# Two sockets of 16 cores with two threads each and two last-level caches; four GPUs on each.
BIG = Machine(
    nodes={0: "0-15,32-47", 1: "16-31,48-63"},
    packages={0: "0-15,32-47", 1: "16-31,48-63"},
    siblings=[f"{core},{core + 32}" for core in range(32)],
    caches=["0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"],
    gpus={f"0000:{bus}:00.0": number // 4 for number, bus in enumerate(GPUS)},
)

# The same with two NUMA nodes in each socket, as its firmware may be set to.
SPLIT = Machine(
    nodes={0: "0-7,32-39", 1: "8-15,40-47", 2: "16-23,48-55", 3: "24-31,56-63"},
    packages=BIG.packages,
    siblings=BIG.siblings,
    caches=BIG.caches,
    gpus={f"0000:{bus}:00.0": number // 2 for number, bus in enumerate(GPUS)},
)


def no_torch():
    raise AssertionError("torch was asked")


def cpus_by_rank(machine, root, mode, nprocs=8, allowed=None, environ=None, locate=no_torch):
    allowed = machine.all_cpus() if allowed is None else allowed
    binder = DeviceBinder(
        mode,
        environ=environ or {},
        root=machine.write(root),
        locate=locate,
        allowed=lambda: allowed,
    )
    bindings = binder.plan(nprocs)
    return {rank: format_cpus(binding.cpus) for rank, binding in bindings.items()}


# --- four modes on two machines -------------------------------------------------------------------

SOCKETS = ["0-15,32-47", "16-31,48-63"]
FOUR_CORES = [f"{core}-{core + 3},{core + 32}-{core + 35}" for core in range(0, 32, 4)]
NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}
TWO_GPUS = {"CUDA_VISIBLE_DEVICES": "4,0"}


def each(times, texts):
    """Repeat each text."""
    return [text for text in texts for _ in range(times)]


@pytest.mark.parametrize(
    ("machine", "mode", "expected"),
    [
        (BIG, "node", each(4, SOCKETS)),
        (BIG, "socket", each(4, SOCKETS)),
        (BIG, "exclusive", FOUR_CORES),
        (BIG, "core-complex", BIG.caches[:2] * 2 + BIG.caches[2:] * 2),
        (SPLIT, "node", each(2, SPLIT.caches)),
        (SPLIT, "socket", each(4, SOCKETS)),
        (SPLIT, "core-complex", each(2, SPLIT.caches)),
    ],
)
def test_a_mode_on_a_machine(tmp_path, machine, mode, expected):
    assert cpus_by_rank(machine, tmp_path, mode) == dict(enumerate(expected))


# By what is tested: the mode, the number of workers, what may be used, and what each of them gets.
SHARES = {
    # Six cores for four devices, then four half cores.
    "cores that are left over go to the first devices": (
        *("exclusive", 8, "0-5,32-37,16-19"),
        ["0-1,32-33", "2-3,34-35", "4,36", "5,37", "16", "17", "18", "19"],
    ),
    "caches with more processors come first": (
        *("core-complex", 4, "0-1,8-12,16-31"),
        ["8-12", "0-1", "8-12", "0-1"],
    ),
    "devices without a worker keep their share": (
        *("exclusive", 2, "0-63"),
        ["0-3,32-35", "4-7,36-39"],
    ),
    "but not where there are too few cores": ("exclusive", 2, "0-2,16-31", ["0-1", "2"]),
}


@pytest.mark.parametrize(("mode", "nprocs", "allowed", "expected"), SHARES.values(), ids=SHARES)
def test_the_share_of_a_device(tmp_path, mode, nprocs, allowed, expected):
    chosen = cpus_by_rank(BIG, tmp_path, mode, nprocs, parse_cpus(allowed))
    assert chosen == dict(enumerate(expected))


def test_a_core_is_never_divided_though_its_first_thread_may_not_be_used(tmp_path):
    allowed = parse_cpus("1,32,33")  # of core 0 only its second thread
    machine = Machine(**{**vars(BIG), "gpus": {"0000:1b:00.0": 0, "0000:3d:00.0": 0}})
    assert cpus_by_rank(machine, tmp_path, "exclusive", 2, allowed) == {0: "32", 1: "1,33"}


@pytest.mark.parametrize(
    ("mode", "environ", "expected"),
    [
        # Workers that share devices share them in turn.
        ("node", TWO_GPUS, SOCKETS[::-1] * 2),
        ("exclusive", TWO_GPUS, ["16-23,48-55", "0-7,32-39", "24-31,56-63", "8-15,40-47"]),
        ("core-complex", TWO_GPUS, ["16-23,48-55", "0-7,32-39", "24-31,56-63", "8-15,40-47"]),
        # Without devices they are spread over the nodes, of which they have parts.
        ("node", NO_GPUS, SOCKETS[:1]),
        ("node", NO_GPUS, SOCKETS),
        ("node", NO_GPUS, [SOCKETS[0], *SOCKETS]),
        ("node", NO_GPUS, each(2, SOCKETS)),
        ("exclusive", NO_GPUS, BIG.caches),
    ],
)
def test_more_workers_than_devices(tmp_path, mode, environ, expected):
    chosen = cpus_by_rank(BIG, tmp_path, mode, len(expected), environ=environ)
    assert chosen == dict(enumerate(expected))


# --- machines with less information ---------------------------------------------------------------


def test_a_kernel_without_numa_has_one_node(tmp_path):
    machine = Machine({}, {0: "0-3"}, gpus={"0000:1b:00.0": -1, "0000:3d:00.0": -1})
    assert cpus_by_rank(machine, tmp_path, "node", 2) == {0: "0-3", 1: "0-3"}
    assert cpus_by_rank(machine, tmp_path, "exclusive", 2) == {0: "0-1", 1: "2-3"}


@pytest.mark.parametrize("mode", MODES)
def test_without_a_topology_binding_is_by_nodes(tmp_path, mode):
    machine = Machine({0: "0-1", 1: "2-3"}, {0: "0-3"}, gpus={"0000:1b:00.0": 1}, missing=("cpu/",))
    expected = "2" if mode == "exclusive" else "2-3"
    chosen = cpus_by_rank(machine, tmp_path, mode, 1 if mode != "exclusive" else 2)
    assert chosen[0] == expected


@pytest.mark.parametrize(
    ("machine", "cpus", "said"),
    [
        (BIG, SOCKETS[0], "does not know which NUMA node device 0000:1b:00.0 is on; node 0"),
        (Machine({0: "0-3"}, {0: "0-3"}), "0-3", ""),  # it is no news where there is one node
    ],
)
def test_a_device_of_an_unknown_node_is_on_the_first_one(tmp_path, caplog, machine, cpus, said):
    machine = Machine(**{**vars(machine), "gpus": {"0000:1b:00.0": -1}})
    with caplog.at_level(logging.WARNING, "plaunch"):
        assert cpus_by_rank(machine, tmp_path, "node", 1) == {0: cpus}
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)


def test_a_node_without_cpus_is_replaced_by_the_nearest_one(tmp_path):
    machine = Machine(
        nodes={0: "0-1", 1: "2-3", 2: ""},
        packages={0: "0-1", 1: "2-3"},
        gpus={"0000:1b:00.0": 2},
        distances={0: "10 20 40", 1: "20 10 30", 2: "40 30 10"},
    )
    assert cpus_by_rank(machine, tmp_path, "node", 1) == {0: "2-3"}
    assert cpus_by_rank(machine, tmp_path, "socket", 1) == {0: "2-3"}


def test_processors_that_are_offline_are_not_used(tmp_path):
    machine = Machine(
        nodes={0: "0,2-3"},  # the kernel lists those that are online
        packages={0: "0,2-3"},
        siblings=["0", "2-3"],
        gpus={"0000:1b:00.0": 0, "0000:3d:00.0": 0},
    )
    assert cpus_by_rank(machine, tmp_path, "exclusive", 2) == {0: "0", 1: "2-3"}


def test_with_one_node_devices_need_not_be_known(tmp_path):
    machine = Machine({0: "0-3"}, {0: "0-3"}, siblings=["0-1", "2-3"])
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()  # only torch knows the devices
    assert cpus_by_rank(machine, tmp_path, "exclusive", 2) == {0: "0-1", 1: "2-3"}


def test_torch_is_queried_if_the_kernel_does_not_know(tmp_path):
    machine = Machine(**{**vars(BIG), "missing": ("information",)})
    asked = []

    def locate():
        asked.append(1)
        return [Accelerator("", n, f"0000:{bus}:00.0") for n, bus in enumerate(("9d", "1b"))]

    binder = DeviceBinder(
        "node",
        environ={},
        root=machine.write(tmp_path),
        locate=locate,
        allowed=machine.all_cpus,
    )
    for _ in range(2):  # workers are started again
        bindings = binder.plan(2)
    assert {rank: binding.node for rank, binding in bindings.items()} == {0: 1, 1: 0}
    assert asked == [1]


def test_the_mask_is_read_for_every_start(tmp_path):
    masks = [BIG.all_cpus(), {3, 20}]
    binder = DeviceBinder(
        "node", environ={}, root=BIG.write(tmp_path), allowed=lambda: masks.pop(0)
    )
    assert binder.plan(8)[7].cpus == parse_cpus("16-31,48-63")
    assert binder.plan(8)[7].cpus == {20}


# --- what cannot be bound -------------------------------------------------------------------------


def test_a_node_outside_the_mask_is_named_with_the_device(tmp_path):
    with pytest.raises(UsageError) as caught:
        cpus_by_rank(BIG, tmp_path, "node", allowed={0, 1, 2})
    assert str(caught.value) == (
        "--numa-binding=node is not possible: local rank 4's device, NVIDIA 4 (0000:9d:00.0), is "
        "on NUMA node 1, and the affinity mask of this process, 0-2, has no CPU of that node; "
        "start the launcher with CPUs of all nodes that have devices"
    )


def test_exclusive_needs_a_core_for_each_worker(tmp_path):
    with pytest.raises(UsageError, match=r"has 2 core\(s\) .* for 3 workers; use the mode 'node'"):
        cpus_by_rank(
            BIG, tmp_path, "exclusive", 3, allowed={0, 1, 32}, environ={"CUDA_VISIBLE_DEVICES": "0"}
        )


def test_a_device_without_an_address_is_an_error(tmp_path):
    machine = Machine(**{**vars(BIG), "missing": ("information",)})
    with pytest.raises(UsageError, match="neither the kernel nor torch knows its PCI address"):
        cpus_by_rank(machine, tmp_path, "node", 1, locate=lambda: [Accelerator("", 0)])


def test_a_device_that_sysfs_does_not_have_is_an_error(tmp_path):
    machine = Machine(**{**vars(BIG), "missing": ("1b:00.0/numa_node",)})
    with pytest.raises(UsageError, match=r"/sys/bus/pci/devices/0000:1b:00\.0/numa_node cannot be"):
        cpus_by_rank(machine, tmp_path, "node", 1)


def test_a_worker_that_cannot_be_bound_may_start_unbound(tmp_path, caplog):
    options = NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    with caplog.at_level(logging.WARNING, "plaunch"):
        chosen = cpus_by_rank(BIG, tmp_path, options, 6, allowed={0, 1})
    assert chosen == dict.fromkeys(range(4), "0-1")
    assert len(caplog.records) == 2  # ranks 4 and 5 have different devices
    assert "rank 4 started without it: local rank 4's device" in caplog.text


def test_a_torch_that_does_not_answer_may_be_ignored(tmp_path, caplog):
    def locate():
        raise UsageError("asked torch, which has no torch")

    machine = Machine(**{**vars(BIG), "missing": ("information",)})
    with pytest.raises(UsageError, match="is not possible: asked torch"):
        cpus_by_rank(machine, tmp_path, "node", 8, locate=locate)
    options = NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    with caplog.at_level(logging.WARNING, "plaunch"):
        assert cpus_by_rank(machine, tmp_path, options, 8, locate=locate) == {}
    assert "ranks 0-7 started without it: asked torch" in caplog.text


# --- options --------------------------------------------------------------------------------------


def test_options_are_torchs():
    torch_mode = SimpleNamespace(value="core-complex")
    of_torch = SimpleNamespace(affinity_mode=torch_mode, should_fall_back_if_binding_fails=True)
    assert NumaOptions.of(of_torch) == NumaOptions(AffinityMode.CORE_COMPLEX, True)
    assert NumaOptions.of("node") == NumaOptions(AffinityMode.NODE)


def test_torchs_own_objects_are_accepted():
    binding = pytest.importorskip("torch.numa.binding")
    for mode in binding.AffinityMode:
        of_plaunch = NumaOptions.of(binding.NumaOptions(affinity_mode=mode))
        assert of_plaunch == NumaOptions(AffinityMode(mode.value))
    assert [mode.name for mode in AffinityMode] == [mode.name for mode in binding.AffinityMode]


@pytest.mark.parametrize("options", ["nodes", SimpleNamespace(affinity_mode="socke"), object()])
def test_other_options_are_refused(options):
    with pytest.raises(
        UsageError, match=r"choices: core-complex, exclusive, node|give NumaOptions"
    ):
        NumaOptions.of(options)


# --- what is said ---------------------------------------------------------------------------------


def test_bindings_are_logged_in_one_line(tmp_path, caplog):
    binder = DeviceBinder("node", environ={}, root=BIG.write(tmp_path), allowed=BIG.all_cpus)
    with caplog.at_level(logging.INFO, "plaunch"):
        bindings = binder.plan(5)
        binder.plan(5)  # the same again is no news
    line = (
        "numa-binding node: ranks 0-3 -> CPUs 0-15,32-47 (devices 0000:1b:00.0 0000:3d:00.0 "
        "0000:4e:00.0 0000:5f:00.0, node 0); rank 4 -> CPUs 16-31,48-63 (device 0000:9d:00.0, "
        "node 1)"
    )
    assert caplog.messages == [line]
    assert describe_bindings(AffinityMode.NODE, bindings.values()) == line


@pytest.mark.parametrize(
    ("cpus", "text"),
    [((), ""), ((3,), "3"), ((0, 1), "0-1"), ((9, 0, 1, 2, 4, 6, 5), "0-2,4-6,9")],
)
def test_lists_of_processors_are_written_as_the_kernel_writes_them(cpus, text):
    assert format_cpus(cpus) == text
    assert parse_cpus(text + "\n") == set(cpus)


# --- any machine ----------------------------------------------------------------------------------


@st.composite
def machines(draw):
    """A machine, a mask with CPUs of every node, and a number of workers."""
    sockets, nodes = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    cores, threads = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    count = sockets * nodes * cores
    of_node = {
        node: [node * cores + core for core in range(cores)] for node in range(sockets * nodes)
    }

    def with_threads(first):
        return format_cpus(core + thread * count for core in first for thread in range(threads))

    split = draw(st.integers(0, cores))  # where the node's second cache begins
    machine = Machine(
        nodes={node: with_threads(first) for node, first in of_node.items()},
        packages={
            socket: with_threads(range(socket * nodes * cores, (socket + 1) * nodes * cores))
            for socket in range(sockets)
        },
        siblings=[with_threads([core]) for core in range(count)],
        caches=[
            with_threads(part)
            for first in of_node.values()
            for part in (first[:split], first[split:])
            if part
        ],
        gpus={
            f"0000:{bus:02x}:00.0": draw(st.integers(-1, sockets * nodes - 1))
            for bus in range(draw(st.integers(0, 6)))
        },
    )
    allowed = set(draw(st.sets(st.sampled_from(sorted(machine.all_cpus())))))
    allowed |= {first[-1] for first in of_node.values()}
    return machine, allowed, draw(st.integers(1, 8))


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(machines(), st.sampled_from(MODES))
def test_every_worker_has_its_own_cpus(case, mode):
    machine, allowed, nprocs = case
    with tempfile.TemporaryDirectory() as root:
        try:
            chosen = cpus_by_rank(machine, root, mode, nprocs, allowed)
        except UsageError:
            # A node with more workers than cores; see above for the message.
            if mode != "exclusive":
                raise
            return
        topology = Topology(root, allowed)
        cores_by_node = {node: topology.cores_of(node) for node in topology.nodes()}
    assert set(chosen) == set(range(nprocs))
    for cpus in chosen.values():
        assert parse_cpus(cpus)
        assert parse_cpus(cpus) <= allowed
    if mode == "exclusive":
        for node, cores in cores_by_node.items():
            sizes = []
            for cpus in map(parse_cpus, chosen.values()):
                if cpus <= topology.cpus_of(node):
                    whole = [core for core in cores if core & cpus]
                    assert cpus == frozenset().union(*whole)
                    sizes.append(len(whole))
            assert not sizes or max(sizes) - min(sizes) <= 1
            assert sum(sizes) <= len(cores)


@pytest.mark.slow
def test_torch_binds_to_the_same():
    """If torch's own functions have a result, plaunch has the same."""
    of_torch = pytest.importorskip("torch.numa.binding")
    answers = 0

    @settings(
        max_examples=60,
        derandomize=True,  # or it may happen that there are hardly any answers
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(machines(), st.sampled_from(MODES))
    def compare(case, mode):
        nonlocal answers
        machine, allowed, nprocs = case
        nprocs = min(nprocs, len(machine.gpus))
        if nprocs == 0:
            return
        with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
            machine.write(root)
            move_torch(patch, of_torch, machine, root, allowed)
            options = of_torch.NumaOptions(affinity_mode=of_torch.AffinityMode(mode))
            try:
                cpus = [cpus_of_torch(of_torch, rank, options) for rank in range(nprocs)]
            except (RuntimeError, ValueError):
                return  # too few cores for some worker: what the others get is of no use
            of_plaunch = cpus_by_rank(machine, root, mode, nprocs, allowed)
            assert of_plaunch == {rank: format_cpus(own) for rank, own in enumerate(cpus)}
            answers += nprocs

    compare()
    assert answers > 20


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("machine", [BIG, SPLIT])
def test_torch_binds_to_the_same_on_a_big_machine(tmp_path, monkeypatch, machine, mode):
    of_torch = pytest.importorskip("torch.numa.binding")
    of_plaunch = cpus_by_rank(machine, tmp_path, mode)
    move_torch(monkeypatch, of_torch, machine, str(tmp_path), machine.all_cpus())
    options = of_torch.NumaOptions(affinity_mode=of_torch.AffinityMode(mode))
    for rank in range(8):
        cpus = cpus_of_torch(of_torch, rank, options)
        assert of_plaunch[rank] == format_cpus(cpus)


def cpus_of_torch(module, rank, options):
    """Return the CPUs that torch binds a worker to."""
    find = module._get_logical_cpus_to_bind_to
    index = next(name for name in signature(find).parameters if name.endswith("_index"))
    return find(**{index: rank}, numa_options=options)


def move_torch(patch, module, machine, root, allowed):
    """Make torch's module read a machine of files."""

    def properties(index):
        _, bus, device = list(machine.gpus)[index].partition(".")[0].split(":")
        return SimpleNamespace(
            pci_domain_id=0, pci_bus_id=int(bus, 16), pci_device_id=int(device, 16)
        )

    cuda = SimpleNamespace(device_count=lambda: len(machine.gpus), get_device_properties=properties)
    accelerator = SimpleNamespace(
        is_available=lambda: bool(machine.gpus),
        device_count=cuda.device_count,
        current_accelerator=lambda: "cuda",
    )
    torch = SimpleNamespace(
        cuda=cuda, accelerator=accelerator, get_device_module={"cuda": cuda}.get
    )
    patch.setattr(module, "torch", torch)
    patch.setattr(module, "open", lambda path: open(root + path), raising=False)
    system = SimpleNamespace(
        path=os.path,
        listdir=lambda path: os.listdir(root + path),
        sched_getaffinity=lambda _: set(allowed),
    )
    patch.setattr(module, "os", system)
