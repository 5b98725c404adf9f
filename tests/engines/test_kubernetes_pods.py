"""What the status of pods says."""

from plaunch_engines.kubernetes_pods import choose_code, end_of_job, is_suspended, read_pod


def pod(index=0, state=None, created="1", last=None, **status):
    metadata = {"name": f"x-{index}", "creationTimestamp": created}
    metadata["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
    containers = [{"name": "node", "state": state or {}, "lastState": last or {}}]
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


def test_of_a_container_that_was_restarted_the_cause_counts():
    restarted = pod(0, ended(143), last=ended(7))
    assert restarted.ends[0].code == 143
    assert choose_code([restarted]) == 7
    assert choose_code([pod(0, ended(9), last=ended(7))]) == 9
    assert choose_code([pod(0, {"running": {}}, last=ended(7))]) == 7


def test_a_container_that_is_restarted_has_not_ended():
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    crashed = pod(0, waiting, last=ended(7))
    assert (crashed.problem, crashed.is_started, crashed.is_over) == ("", True, False)
    assert pod(0, waiting).problem == "CrashLoopBackOff"
    assert pod(0, ended(7), phase="Failed").is_over


def test_states():
    waiting = pod(state={"waiting": {"reason": "ErrImagePull", "message": "a\n b"}})
    assert (waiting.problem, waiting.is_started) == ("ErrImagePull: a b", False)
    assert pod(state={"waiting": {"reason": "ContainerCreating"}}).problem == ""
    assert pod(state={"running": {}}).is_started
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert pod(conditions=[condition]).unscheduled == "Unschedulable"
    evicted = pod(phase="Failed", reason="Evicted", message="disk")
    assert (evicted.disruption, evicted.is_over) == ("Evicted: disk", True)
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
    assert is_suspended(job("Suspended"))
    assert not is_suspended(job("Suspended", "False"))
