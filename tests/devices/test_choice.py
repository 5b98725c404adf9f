"""`--devices` and `--virtual-local-rank`."""

from __future__ import annotations

import pytest
from plaunch import LaunchConfig
from plaunch.agent import Worker, WorkerGroup, WorkerSpec
from plaunch.agent.worker import worker_environment
from plaunch.errors import UsageError
from plaunch.process.components import default_binder
from plaunch.testing import FakeRendezvous
from plaunch_devices.choice import own_visibility, parse_devices, visibility_of

KFD = "sys/class/kfd/kfd/topology/nodes/1/properties"
NVIDIA = {f"dev/nvidia{number}": "" for number in range(8)}
AMD = {"dev/kfd": "", KFD: "simd_count 304\nlocation_id 4096\n"}
INTEL = {"sys/class/drm/renderD128/device/vendor": "0x8086\n"}
CANN = {"dev/davinci0": ""}
HABANA = {f"sys/class/accel/accel{number}/device/vendor": "0x1da3\n" for number in range(4)}

CUDA, HIP, ROCR = (f"{vendor}_VISIBLE_DEVICES" for vendor in ("CUDA", "HIP", "ROCR"))
ASCEND = "ASCEND_RT_VISIBLE_DEVICES"


def hip(text):
    """The two variables that AMD's devices are chosen with."""
    return {HIP: text, CUDA: text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", ["2"]),
        ("2,4-7", ["2", "4", "5", "6", "7"]),
        (" 3 , 0 - 1 ", ["3", "0", "1"]),
        ("07", ["7"]),
        ("5-5", ["5"]),
    ],
)
def test_devices_are_numbers_and_ranges_in_their_order(text, expected):
    assert parse_devices(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' in '' is not a device number; write numbers from 0 up"),
        ("1,,2", "'' in '1,,2'"),
        ("-1", "'-1'"),
        ("2-", "'2-'"),
        ("a", "'a'"),
        ("GPU-5f", "'GPU-5f'"),
        ("1.0", "'1.0'"),
        ("²", "'²'"),
        ("1-2-3", "'1-2-3'"),
        ("7-4", "'7-4' in '7-4' is in descending order; write 4-7"),
        ("0-99999999", "no node has more than 4096 devices"),
        ("1,2,1", "named more than once: 1 (--devices)"),
        ("0-3,2-5,03", "named more than once: 2, 3"),
    ],
)
def test_other_texts_are_refused_with_the_fix(text, said):
    with pytest.raises(UsageError) as caught:
        parse_devices(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("files", "environ", "devices", "expected"),
    [
        (NVIDIA, {}, ["2", "4"], {CUDA: "2,4"}),
        (NVIDIA, {CUDA: "7,6,5"}, ["2", "0"], {CUDA: "5,7"}),
        (NVIDIA, {CUDA: "GPU-aa, MIG-bb"}, ["1"], {CUDA: "MIG-bb"}),
        (NVIDIA, {"ZE_AFFINITY_MASK": "0"}, ["3"], {CUDA: "3"}),
        (AMD, {}, ["0"], hip("0")),
        (AMD, {HIP: "3,4", CUDA: "0"}, ["1"], hip("4")),
        (AMD, {CUDA: "3,4"}, ["1"], hip("4")),
        (INTEL, {}, ["5"], {"ZE_AFFINITY_MASK": "5"}),
        (INTEL, {"ZE_AFFINITY_MASK": "0.1,1.1"}, ["1"], {"ZE_AFFINITY_MASK": "1.1"}),
        (INTEL, {"ZE_AFFINITY_MASK": ""}, ["1"], {"ZE_AFFINITY_MASK": "1"}),
        (HABANA, {}, ["3"], {"HABANA_VISIBLE_MODULES": "3"}),
        (CANN, {}, ["1"], {ASCEND: "1"}),
        (CANN, {ASCEND: "4,5"}, ["1"], {ASCEND: "5"}),
        ({}, {}, ["1"], {CUDA: "1"}),
        ({}, {HIP: "8,9"}, ["1"], hip("9")),
    ],
)
def test_devices_are_chosen_among_the_visible_ones(root, files, environ, devices, expected):
    assert visibility_of(devices, environ, root=root(files)) == expected


@pytest.mark.parametrize(
    ("files", "environ", "devices", "said"),
    [
        (NVIDIA, {}, ["7", "8", "9"], "names 8, 9, but this host has NVIDIA devices; 8 can"),
        (
            NVIDIA,
            {CUDA: "2,4"},
            ["2"],
            "names 2, but CUDA_VISIBLE_DEVICES is '2,4'; 2 can be used: numbers go from 0 to 1",
        ),
        (NVIDIA, {CUDA: ""}, ["0"], "; 0 can be used: none is visible"),
        (NVIDIA, {CUDA: "3,-1,4"}, ["1"], "; 1 can be used"),
        (AMD, {}, ["1"], "AMD devices; 1 can be used"),
        (NVIDIA, {}, ["x"], "device 'x' is not a number"),
        (NVIDIA, {}, [], "no devices are given"),
    ],
)
def test_devices_that_are_not_visible_are_refused(root, files, environ, devices, said):
    with pytest.raises(UsageError) as caught:
        visibility_of(devices, environ, root=root(files))
    assert said in str(caught.value)


def test_no_choice_changes_nothing(root):
    assert visibility_of(None, {CUDA: "1"}, root=root(NVIDIA)) == {}


@pytest.mark.parametrize(
    ("files", "environ", "rank", "expected"),
    [
        ({}, {}, 3, {CUDA: "3"}),  # torchrun's, also without a GPU
        (NVIDIA, {}, 3, {CUDA: "3"}),
        (NVIDIA, {CUDA: "4, 6"}, 1, {CUDA: "6"}),
        (NVIDIA, {CUDA: "GPU-a,GPU-b"}, 1, {CUDA: "GPU-b"}),
        (NVIDIA, {CUDA: ""}, 1, {CUDA: ""}),
        (NVIDIA, {HIP: "9,8"}, 1, {CUDA: "1"}),
        (AMD, {}, 1, hip("1")),
        (AMD, {HIP: "5,7"}, 1, hip("7")),
        # HIP's numbers count what ROCR leaves
        (AMD, {ROCR: "5,7"}, 1, hip("1")),
        (INTEL, {}, 1, {"ZE_AFFINITY_MASK": "1"}),
        (INTEL, {"ZE_AFFINITY_MASK": "0.0,0.1"}, 1, {"ZE_AFFINITY_MASK": "0.1"}),
    ],
)
def test_a_worker_sees_its_own_device(root, files, environ, rank, expected):
    assert own_visibility(rank, environ, root=root(files)) == expected


def test_a_worker_without_a_device_of_its_own_is_an_error(root):
    with pytest.raises(UsageError) as caught:
        own_visibility(2, {CUDA: "4,6"}, root=root(NVIDIA))
    assert "local rank 2 has no device of its own" in str(caught.value)
    assert "CUDA_VISIBLE_DEVICES is '4,6', which has 2" in str(caught.value)


# --- the environment of a worker ------------------------------------------------------------------


def environment(local_rank, environ, **spec):
    group = WorkerGroup(
        WorkerSpec(
            role="trainer",
            local_world_size=4,
            rdzv_handler=FakeRendezvous(),
            entrypoint="true",
            **spec,
        )
    )
    group.group_rank, group.group_world_size = 0, 1
    worker = Worker(local_rank, local_rank, local_rank, 4, 4)
    binder = default_binder(
        devices=group.spec.devices, virtual_local_rank=group.spec.virtual_local_rank
    )
    return worker_environment(group, worker, attempt=0, round=0, environ=environ, binder=binder)


def test_without_either_no_variables_are_set():
    env = environment(3, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert env["LOCAL_RANK"] == "3"
    assert not [name for name in env if "VISIBLE" in name]


@pytest.mark.parametrize(
    ("spec", "local_rank", "devices"),
    [
        ({"virtual_local_rank": True}, "0", "7"),
        ({"devices": ["3", "2", "1", "0"]}, "3", "7,6,5,4"),
        ({"devices": ["3", "2", "1", "0"], "virtual_local_rank": True}, "0", "4"),
    ],
)
def test_the_third_worker_of_four(spec, local_rank, devices):
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    env = environment(3, environ, **spec)
    changed = {
        name: value for name, value in env.items() if value != environment(3, environ).get(name)
    }
    expected = {"CUDA_VISIBLE_DEVICES": devices}
    if local_rank == "0":
        expected["LOCAL_RANK"] = "0"
    assert changed == expected  # ranks and sizes are what they are


def test_a_configuration_has_a_device_for_each_worker():
    assert LaunchConfig(1, 1, 2, devices=[2, "03"]).devices == [2, "03"]
    with pytest.raises(UsageError, match=r"2 devices .* 3 workers"):
        LaunchConfig(1, 1, 3, devices=["1", "2"])
