"""A job in a cluster: what the command says and does about each answer of the API server."""

import pytest
from plaunch_engines.errors import NodesLostError, StartError
from plaunch_engines.kubernetes_client import ClusterError, ObjectNotFoundError
from plaunch_engines.kubernetes_job import SubmittedJob
from plaunch_engines.kubernetes_manifests import KINDS, PodJob

from helpers.clock import Clock

DOWN = ClusterError("cannot read Job x: https://api cannot be reached", 0)
RUNNING = {"running": {}}


def pod(index=0, state=None, name=None, **status):
    container = {"name": "node", "state": state or {}, **status.pop("container", {})}
    return {
        "metadata": {
            "name": name or f"x-{index}-abcde",
            "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {"hostname": f"x-{index}", "restartPolicy": "Never"},
        "status": {"containerStatuses": [container], **status},
    }


def ended(code, **more):
    return {"terminated": {"exitCode": code, "finishedAt": "1", "reason": "Error", **more}}


def job(*conditions):
    return {"status": {"conditions": [{"type": each, "status": "True"} for each in conditions]}}


class ScriptedCluster:
    """Answers each look at the job from a list of pairs: the job, its pods."""

    host, namespace, kind = "https://api", "team", KINDS["job"]
    unreachable = (OSError,)

    def __init__(self, *answers, refused=None):
        self.answers, self.refused = list(answers), refused or {}
        self.requests = []
        self.found = []

    def create(self, manifest, *, is_trial=False):
        self._record("try" if is_trial else "create", manifest["kind"])
        metadata = {**manifest["metadata"], "uid": "1"}
        spec = {k: v for k, v in manifest.get("spec", {}).items() if k != self.refused.get("spec")}
        return {**manifest, "metadata": metadata, **({"spec": spec} if spec else {})}

    def check_rights(self, name):
        self._record("check", "rights")

    def find(self, name):
        if self.requests and self.requests[-1] == "delete Job":
            return None
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        found, self.found = answer
        return found

    def pods(self, name):
        return [] if self.requests[-1] == "delete Job" else self.found

    def warnings(self, name):
        self._record("list", "events")
        return ["FailedCreate: exceeded quota"]

    def delete(self, name):
        self._record("delete", "Job")

    def open_log(self, pod, since):
        raise ObjectNotFoundError("gone", 404)

    def _record(self, verb, what):
        self.requests.append(f"{verb} {what}")
        refusal = self.refused.get(self.requests[-1])
        if isinstance(refusal, list):
            refusal = refusal.pop(0) if refusal else None
        if refusal is not None:
            raise refusal


def run(cluster, nodes=1, clock=None, **options):
    clock = clock or Clock()
    manifests = PodJob(
        name="x", kind="job", arguments=[], token="t", min_nodes=nodes, max_nodes=nodes
    ).manifests()
    return SubmittedJob(
        cluster, manifests, print, nodes=nodes, start_limit=60.0, clock=clock,
        sleep=clock.advance, **options,
    ).run()  # fmt: skip


CREATED = [
    "try Job", "try Secret", "try Service", "check rights",
    "create Job", "create Secret", "create Service",
]  # fmt: skip


def test_everything_is_tried_before_anything_is_created():
    cluster = ScriptedCluster((job("Complete"), [pod(0, ended(0))]))
    assert run(cluster) == 0
    assert cluster.requests == CREATED


def test_a_missing_right_leaves_nothing():
    refusal = ClusterError("cannot list pods: forbidden (403 from https://api)", 403)
    cluster = ScriptedCluster((job(), []), refused={"check rights": refusal})
    with pytest.raises(StartError, match="nothing was started: cannot list pods: forbidden"):
        run(cluster)
    assert cluster.requests == CREATED[:4]


def test_a_field_that_the_cluster_does_not_know():
    cluster = ScriptedCluster((job(), []), refused={"spec": "podFailurePolicy"})
    with pytest.raises(StartError, match=r"https://api ignores spec.podFailurePolicy of Job x"):
        run(cluster)
    assert cluster.requests == ["try Job"]


@pytest.mark.parametrize(("status", "is_deleted"), [(409, False), (503, True), (0, True)])
def test_a_job_that_may_have_been_created_is_deleted(status, is_deleted, capfd):
    refusal = ClusterError("cannot create Job x", status)
    cluster = ScriptedCluster((job(), []), refused={"create Job": refusal})
    with pytest.raises(StartError, match="nothing was started: cannot create Job x"):
        run(cluster)
    assert ("delete Job" in cluster.requests) == is_deleted


def test_a_job_whose_secret_is_refused_is_deleted(capfd):
    refusal = ClusterError("cannot create Secret x: exceeded quota", 403)
    cluster = ScriptedCluster((job(), []), refused={"create Secret": refusal})
    with pytest.raises(StartError, match="exceeded quota"):
        run(cluster)
    assert cluster.requests[-2:] == ["create Secret", "delete Job"]


def test_an_outage_is_said_at_its_begin_and_at_its_end(capfd):
    pods = [pod(0, RUNNING)]
    cluster = ScriptedCluster(
        (job(), pods), DOWN, DOWN, (job(), pods), DOWN, (job(), pods),
        (job("Complete"), [pod(0, ended(0))]),
    )  # fmt: skip
    assert run(cluster) == 0
    assert capfd.readouterr().err.splitlines()[1:] == 2 * [
        "plaunch: cannot read Job x: https://api cannot be reached; Job x continues, and so does "
        "this command",
        "plaunch: https://api answers again",
    ]


def test_lost_credentials_end_the_command_and_not_the_job(capfd):
    cluster = ScriptedCluster((job(), [pod(0, RUNNING)]), ClusterError("cannot read Job x", 401))
    with pytest.raises(ClusterError, match=r"Job x continues: kubectl get jobs.batch x -n team"):
        run(cluster)
    assert "delete Job" not in cluster.requests


def test_a_job_that_another_user_deletes(capfd):
    cluster = ScriptedCluster((job(), [pod(0, RUNNING)]), (None, []))
    with pytest.raises(NodesLostError, match="Job x does not exist any more in namespace team"):
        run(cluster)


def test_an_image_that_is_not_pulled_ends_the_job(capfd):
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    pods = [pod(0, waiting), pod(1, waiting)]
    cluster, clock = ScriptedCluster((job(), pods)), Clock()
    with pytest.raises(StartError) as caught:
        run(cluster, 2, clock)
    assert str(caught.value) == (
        "x-0-abcde has not started within 60 s (--start-limit): ErrImagePull: not found; Job x is "
        "deleted; check the image and the template"
    )
    assert cluster.requests[-1] == "delete Job"
    assert capfd.readouterr().err.count("does not start: ErrImagePull") == 1  # of two pods


def test_a_container_that_crashes_again_and_again_has_started(capfd):
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m"}}
    crashed = pod(0, waiting, container={"lastState": ended(7), "restartCount": 1})
    crashed["spec"]["restartPolicy"] = "OnFailure"
    cluster = ScriptedCluster(*[(job(), [crashed])] * 200, (job("Failed"), []))
    assert run(cluster) == 7
    err = capfd.readouterr().err
    assert err.count("x-0-abcde ended with 7 (restart 1)\n") == 1
    assert "does not start" not in err


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"state": ended(137, reason="OOMKilled")}, "x-0-abcde ended with 137: OOMKilled"),
        ({"state": ended(128, reason="StartError", message="exec: a\n b")},
         "x-0-abcde ended with 128: StartError: exec: a b"),
        ({"state": ended(143), "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
         "x-0-abcde ended with 143: PreemptionByScheduler"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"},
         "x-0-abcde has ended: Evicted: disk"),
    ],
)  # fmt: skip
def test_the_reason_of_a_pods_end_is_said(status, message, capfd):
    cluster = ScriptedCluster((job(), [pod(0, **status)]), (job("Complete"), []))
    assert run(cluster) == 0
    assert f"plaunch: {message}\n" in capfd.readouterr().err


def test_warnings_are_requested_now_and_then(capfd):
    cluster = ScriptedCluster(*[(job(), [])] * 30, (job("Complete"), []))
    assert run(cluster) == 0
    assert cluster.requests.count("list events") == 3
    assert capfd.readouterr().err.count("plaunch: Job x: FailedCreate: exceeded quota\n") == 1


def test_a_suspended_job(capfd):
    cluster = ScriptedCluster(*[(job("Suspended"), [])] * 3, (job("Complete"), []))
    assert run(cluster) == 0
    assert capfd.readouterr().err.count("Job x is suspended, and waits for its queue") == 1


def test_large_jobs_are_listed_less_often():
    clock = Clock()
    began = clock()
    cluster = ScriptedCluster(*[(job(), [])] * 10, (job("Complete"), []))
    assert run(cluster, 1000, clock) == 0
    assert clock() - began == pytest.approx(100)


def test_a_failed_job_without_exit_codes(capfd):
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
    cluster = ScriptedCluster(({"status": {"conditions": [failed]}}, []))
    with pytest.raises(NodesLostError) as caught:
        run(cluster)
    assert str(caught.value) == (
        "Job x has failed: DeadlineExceeded; no pod has an exit code; see kubectl describe "
        "jobs.batch x -n team"
    )


@pytest.mark.parametrize(("state", "code"), [("Complete", 0), ("Failed", 7)])
def test_a_stop_signal_after_the_end_of_the_job_does_not_change_its_code(state, code, capfd):
    pods = [pod(0, ended(code))]
    cluster = ScriptedCluster(
        (job(), [pod(0, RUNNING)]), (job(), pods), KeyboardInterrupt(), (job(state), pods)
    )
    assert run(cluster) == code
    assert "delete Job" not in cluster.requests


def test_two_stop_signals_at_once_still_delete_the_job(capfd):
    cluster = ScriptedCluster(
        (job(), [pod(0, RUNNING)]), KeyboardInterrupt(), (job(), [pod(0, RUNNING)]),
        refused={"delete Job": [KeyboardInterrupt()]},
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run(cluster)
    assert cluster.requests[-2:] == ["delete Job", "delete Job"]


def test_a_deletion_that_does_not_succeed_names_the_reason(capfd):
    cluster = ScriptedCluster(KeyboardInterrupt(), DOWN, refused={"delete Job": DOWN})
    with pytest.raises(KeyboardInterrupt):
        run(cluster)
    assert capfd.readouterr().err.splitlines()[-1] == (
        f"plaunch: Job x is not deleted yet: {DOWN}; see kubectl delete jobs.batch x -n team"
    )
    assert cluster.requests.count("delete Job") > 10


def test_the_status_line_counts_pods(capfd):
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pods = [pod(0, RUNNING), pod(1), pod(2, conditions=[waiting])]
    cluster = ScriptedCluster((job(), pods), (job("Complete"), pods))
    assert run(cluster, 3, has_status=True) == 0
    shown = "Job x: 0:00, 1 of 3 pods running, 1 starting, 1 waiting for a machine"
    assert f"\nplaunch: {shown}\r\x1b[K" in capfd.readouterr().err
