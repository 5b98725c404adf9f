"""The variables of Kubernetes, as its documentation describes them."""

from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch_schedulers.filling import find_no_allocation
from plaunch_schedulers.kubernetes import find_kubernetes_allocation

from helpers.environments import recorded


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


def hosts_file(tmp_path, *entries, header="# Kubernetes-managed hosts file."):
    """Write the hosts file of a pod, as the kubelet does."""
    path = tmp_path / "hosts"
    local = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    path.write_text("\n".join([header, *local, *entries, ""]))
    return path


@pytest.mark.parametrize(
    ("host", "entries", "endpoint"),
    [
        (
            "train-3",
            ["10.0.0.7\ttrain-3.train.default.svc.cluster.local\ttrain-3"],
            "train-0.train",
        ),
        # A Service of another name.
        ("train-3", ["10.0.0.7\ttrain-3.pods.ml.svc.lab\ttrain-3"], "train-0.pods"),
        # A JobSet: the Service has the name of the set, and the Job that of the set and its own.
        (
            "llm-node-0-3",
            [
                "10.0.0.7\tllm-node-0-3.llm.default.svc.cluster.local\tllm-node-0-3",
                "fd00::7\tllm-node-0-3.llm.default.svc.cluster.local\tllm-node-0-3",
            ],
            "llm-node-0-0.llm",
        ),
        # Other entries, as of `hostAliases`.
        ("train-3", ["10.0.0.9\ttrain-1.pods.ml.svc.lab\ttrain-1"], "train-0.train"),
    ],
)
def test_the_service_is_that_of_the_pods_own_name(tmp_path, host, entries, endpoint):
    environ = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": host}
    allocation = find_kubernetes_allocation(environ, hosts_file(tmp_path, *entries))
    assert allocation.endpoint == endpoint
    assert allocation.run_id == endpoint.partition(".")[0].removesuffix("-0")


def test_a_pod_without_a_subdomain_cannot_be_resolved(tmp_path):
    environ = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "train-3"}
    path = hosts_file(tmp_path, "10.0.0.7\ttrain-3")
    allocation = find_kubernetes_allocation(environ, path)
    assert (allocation.endpoint, allocation.run_id, allocation.node_rank) == ("", "train", 3)
    assert "subdomain" in allocation.missing["endpoint"]


@pytest.mark.parametrize(
    "header", ["# Kubernetes-managed hosts file (host network).", "# Written by another program."]
)
def test_other_hosts_files_are_ignored(tmp_path, header):
    path = hosts_file(tmp_path, "10.0.0.7\ttrain-3", header=header)
    environ = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "train-3"}
    for file in (path, tmp_path / "none"):
        assert find_kubernetes_allocation(environ, file).endpoint == "train-0.train"


@pytest.mark.parametrize("host", ["metal-17", "metal", "train-13", ""])
def test_a_hostname_of_the_node_gives_no_job_name(host):
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
def test_invalid_environments(environ, message):
    with pytest.raises(UsageError, match=message):
        find_kubernetes_allocation(environ)


def test_none_fills_in_nothing():
    allocation = find_no_allocation(recorded("slurm-step-2x1-task0"))
    assert allocation.nnodes is None
    assert not allocation.sources
