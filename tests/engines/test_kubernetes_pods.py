"""What the status of pods says, and the lines of their logs."""

from plaunch_engines.kubernetes_logs import split_lines
from plaunch_engines.kubernetes_pods import choose_code, end_of_job, read_pod
from plaunch_engines.records import MAX_LINE


def pod(index=0, state=None, created="1", **status):
    metadata = {"name": f"x-{index}", "creationTimestamp": created}
    metadata["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
    containers = [{"name": "node", "state": state or {}}]
    status = {"containerStatuses": containers, **status}
    return read_pod({"metadata": metadata, "spec": {"hostname": f"x-{index}"}, "status": status})


def ended(code, at="1"):
    return {"terminated": {"exitCode": code, "finishedAt": at}}


def test_the_first_code_that_follows_from_no_other_counts():
    pods = [pod(0, ended(113, "1")), pod(1, ended(7, "3")), pod(2, ended(9, "2"))]
    assert choose_code(pods) == 9
    assert choose_code([pod(0, ended(143)), pod(1, ended(0))]) == 143
    assert choose_code([pod(0, ended(0)), pod(1)]) is None


def test_a_pod_that_was_replaced_does_not_count():
    assert choose_code([pod(0, ended(9), created="1"), pod(0, ended(5), created="2")]) == 5
    assert choose_code([pod(0, ended(0), created="2"), pod(0, ended(5), created="1")]) is None


def test_states():
    waiting = pod(state={"waiting": {"reason": "ErrImagePull", "message": "a\n b"}})
    assert (waiting.problem, waiting.is_started) == ("ErrImagePull: a b", False)
    assert pod(state={"waiting": {"reason": "ContainerCreating"}}).problem == ""
    assert pod(state={"running": {}}).is_started
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert pod(conditions=[condition]).unscheduled == "Unschedulable"
    assert pod(phase="Failed", reason="Evicted", message="disk").reason == "Evicted: disk"
    assert read_pod({"metadata": {"name": "x"}}).index == -1


def test_the_end_of_a_job():
    def job(kind, status="True"):
        return {"status": {"conditions": [{"type": kind, "status": status, "reason": "R"}]}}

    assert end_of_job(job("Complete"))[0] is True
    assert end_of_job(job("Completed"))[0] is True
    assert end_of_job(job("Failed")) == (False, "R")
    assert end_of_job(job("Failed", "False"))[0] is None
    assert end_of_job(job("FailureTarget"))[0] is None
    assert end_of_job({})[0] is None


def test_long_lines_are_split():
    chunks = [b"a", b"b\n\nc", b"x" * (2 * MAX_LINE), b"\nd"]
    found = list(split_lines(chunks))
    assert found[:2] == [(True, b"ab"), (True, b"")]
    assert [is_start for is_start, _ in found] == [True, True, True, False, False, True]
    assert max(len(line) for _, line in found) == MAX_LINE
    assert b"".join(line for _, line in found[2:5]) == b"c" + b"x" * (2 * MAX_LINE)
    assert found[-1] == (True, b"d")
