"""What Kubernetes' variables say, as its documentation describes them."""

from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch_schedulers.kubernetes import find_kubernetes_allocation
from plaunch_schedulers.none import find_no_allocation


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"HOSTNAME": "train-3"}, "train"),
        ({"HOSTNAME": "train-3.train.default.svc.cluster.local"}, "train"),
        ({"HOSTNAME": "big-model-7b-3"}, "big-model-7b"),
        ({"HOSTNAME": "metal-17.lab", "JOB_NAME": "train"}, "train"),
        ({"JOB_NAME": "train"}, "train"),
    ],
)
def test_a_pod_of_an_indexed_job(environ, name):
    allocation = find_kubernetes_allocation({"JOB_COMPLETION_INDEX": "3", **environ})
    assert allocation.nnodes is None
    assert allocation.node_rank == 3
    assert allocation.endpoint == f"{name}-0.{name}"
    assert allocation.run_id == name
    assert list(allocation.missing) == ["nnodes"]
    variable = "JOB_NAME" if "JOB_NAME" in environ else "HOSTNAME"
    assert allocation.sources["run_id"] == variable


@pytest.mark.parametrize("host", ["metal-17", "metal", "train-13", ""])
def test_a_host_name_that_is_not_the_pods_names_no_job(host):
    allocation = find_kubernetes_allocation({"JOB_COMPLETION_INDEX": "3", "HOSTNAME": host})
    assert (allocation.endpoint, allocation.run_id, allocation.node_rank) == ("", "", 3)
    assert "--rdzv-endpoint" in allocation.missing["endpoint"]
    assert "--rdzv-id" in allocation.missing["run_id"]


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HOSTNAME": "train-0"}, "JOB_COMPLETION_INDEX is not set.* completionMode: Indexed"),
        ({"JOB_COMPLETION_INDEX": "first"}, "JOB_COMPLETION_INDEX is 'first'"),
    ],
)
def test_what_cannot_be_meant_is_refused(environ, message):
    with pytest.raises(UsageError, match=message):
        find_kubernetes_allocation(environ)


def test_none_takes_nothing(recorded):
    allocation = find_no_allocation(recorded("slurm-step-2x1-task0"))
    assert allocation.nnodes is None
    assert not allocation.sources
