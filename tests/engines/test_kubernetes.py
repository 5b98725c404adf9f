"""`--on=kubernetes`: manifests, and jobs in a cluster for tests whose pods are real processes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from plaunch_engines.kubernetes_manifests import KINDS

from helpers.engine_commands import LIMIT, EngineCommand
from helpers.machine_parts import need
from helpers.network import Network
from helpers.waiting import wait_until

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")
pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are not installed")

from helpers.kubernetes_cluster import FakeCluster

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

SHOW = """
import os, sys
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "PLAUNCH_TEST_WORD")
words = ["rank {} of {}, node {}, {}".format(*(os.environ[n] for n in names)), *sys.argv[1:]]
os.write(1, " ".join(words).encode() + b"\\n")  # all of it at once, as others write too
"""
FAIL = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(60)
"""
WAIT = """
import time
print("waits", flush=True)
time.sleep(60)
"""

ROUNDS = """
import os, time
print("round", flush=True)
while not os.path.exists("done"):
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def network():
    need("networks")
    found = Network(3)
    try:
        found.build()
        yield found
    finally:
        found.remove()


@pytest.fixture
def idle(tmp_path):
    """A cluster that can run no pod."""
    cluster = FakeCluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(tmp_path, network):
    found = FakeCluster(tmp_path, network)
    yield found
    found.close()
    assert processes(tmp_path) == []


def processes(folder):
    """Return the processes of containers."""
    mark = f"PLAUNCH_TEST_CLUSTER={folder}".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(int(pid))
        except OSError:
            continue
    return found


def documented_rights(kind):
    """Return the group, resource and verb of each right of the Role in the documentation."""
    page = Path(__file__).parents[2] / "docs/engines.md"
    role = next(
        yaml.safe_load(block)
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
        if "kind: Role" in block
    )
    known = KINDS[kind]
    return {
        (known.api.rpartition("/")[0] if group == "batch" else group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in ([known.plural] if rule["resources"] == ["jobs"] else rule["resources"])
        for verb in rule["verbs"]
    }


def start(cluster, *words, script=None, kind="job", nodes=3, env=None):
    if script is not None:
        (cluster.folder / "train.py").write_text(script)
    return EngineCommand(
        cluster.folder, "--on=kubernetes", f"--nnodes={nodes}", "--kubernetes-image=train:1",
        f"--kubernetes-kind={kind}", *words,
        env={"KUBECONFIG": str(cluster.kubeconfig), **(env or {})},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_a_job_of_three_pods(cluster, kind):
    command = start(
        cluster, "--nproc-per-node=1", "--pass-env=PLAUNCH_TEST_WORD", "train.py", "$(HOME) $$ $",
        script=SHOW, kind=kind, env={"PLAUNCH_TEST_WORD": "$(PATH)"},
    )  # fmt: skip
    assert command.end() == 0, command.text()
    text = command.text()
    name = "plaunch-[0-9a-f]{8}" + ("" if kind == "job" else "-node-0")
    for index in range(3):
        found = re.search(
            rf"^\[{name}-{index}\] rank (\d) of 3, node \1, \$\(PATH\) \$\(HOME\) \$\$ \$$",
            text, re.MULTILINE,
        )  # fmt: skip
        assert found, text
    assert "Traceback" not in text
    created = [plural for verb, plural, _, query in cluster.requests if verb == "create"]
    own = ["secrets"] if kind != "job" else ["secrets", "services"]
    assert created == [f"{kind}s", *own] * 2  # a trial first
    assert cluster.rights_used <= documented_rights(kind)


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_a_variable_from_a_secret(cluster, kind):
    cluster.create(
        "secrets", "team",
        {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wandb"},
            "stringData": {"key": "hidden", "TOKEN": "also"},
        },
        False,
    )  # fmt: skip
    command = start(
        cluster, "--nproc-per-node=1", "--pass-secret=WANDB_API_KEY=wandb:key",
        "--pass-secret=wandb:TOKEN", "train.py", kind=kind, nodes=1,
        script="import os; print(os.environ['WANDB_API_KEY'], os.environ['TOKEN'])",
    )  # fmt: skip
    assert command.end() == 0, command.text()
    assert "] hidden also\n" in command.text()


def test_a_secret_that_is_missing(cluster):
    command = start(
        cluster, "--pass-secret=wandb:TOKEN", "--start-limit=1", "train.py", script=SHOW, nodes=1
    )
    assert command.end() == 111, command.text()
    assert 'CreateContainerConfigError: secret "wandb" not found' in command.text()


def test_an_image_that_runs_as_root(cluster):
    words = ["--kubernetes-image=root:1", "--nproc-per-node=1", "train.py"]
    script = "print('as root')"
    command = start(cluster, "--start-limit=1", *words, script=script, nodes=1)
    assert command.end() == 111, command.text()
    assert "image will run as root; build the image with a USER" in command.text()
    template = cluster.folder / "t.yaml"
    template.write_text(
        "kind: PodTemplate\ntemplate: {spec: {securityContext: {runAsNonRoot: false}}}\n"
    )
    command = start(cluster, f"--kubernetes-template={template}", *words, script=script, nodes=1)
    assert command.end() == 0, command.text()


def test_the_code_of_the_job_is_that_of_the_rank_that_failed(cluster):
    command = start(cluster, "--nproc-per-node=1", "train.py", script=FAIL)
    assert command.end() == 7, command.text()
    text = command.text()
    assert re.search(r"plaunch: plaunch-\w+-1-\w+ ended with 7", text)
    assert "has failed: PodFailurePolicy" in text
    assert len(cluster.every_pod) == 3


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_deletes_the_job(cluster, signum):
    command = start(cluster, "--nproc-per-node=1", "train.py", script=WAIT)
    command.wait_for(r"\] waits", 3)
    command.process.send_signal(signum)
    assert command.end() == 128 + signum, command.text()
    assert "deleting Job plaunch-" in command.text()
    assert cluster.objects == {}
    assert cluster.pods == []
    assert [pod.code for pod in cluster.every_pod] == [143] * 3
    assert "Traceback" not in command.text()


def test_a_pod_that_is_killed_is_replaced(cluster):
    command = start(cluster, "--nproc-per-node=1", "train.py", script=ROUNDS)
    command.wait_for(r"\] round", 3)
    cluster.pods[2].kill_container()
    command.wait_for(r"-2\] round", 2)
    (cluster.folder / "done").touch()
    assert command.end() == 0, command.text()
    assert re.search(r"-2-\w+ ended with 137", command.text())


def test_the_log_is_complete_after_a_lost_connection_and_errors_of_the_server(cluster):
    cluster.cut_logs_after = 20
    script = "import time; time.sleep(1)\nfor i in range(200): print(f'line {i}\\n', end='')"
    command = start(cluster, "--nproc-per-node=1", "train.py", script=script, nodes=1)
    command.wait_for("created Job")
    cluster.fails = 2
    assert command.end() == 0, command.text()
    found = re.findall(r"^\[\S+-0\] line (\d+)$", command.text(), re.MULTILINE)
    assert [int(number) for number in found] == list(range(200))
    assert "the server is busy" in command.text()
    assert cluster.cut_logs_after is None


@pytest.mark.parametrize(
    ("words", "change", "code", "message"),
    [
        ([], lambda c: c.forbidden.add("create secrets"), 111,
         r"cannot create Secret plaunch-\w+: secrets is forbidden: User .u. cannot create resource "
         r"\S+ in .* \(403 from http://\S+\); get this right, or name another namespace with --"),
        ([], lambda c: c.forbidden.add("list pods"), 111, "nothing was started: cannot list pods"),
        ([], lambda c: c.forbidden.add("delete jobs"), 111, r"cannot delete Job plaunch-\w+: "),
        ([], lambda c: c.forbidden.add("get pods/log"), 111, r"cannot read the log of plaunch-"),
        ([], lambda c: setattr(c, "is_locked", True), 111,
         r"http://\S+ does not accept the credentials of the current context \(Unauthorized\); "),
        (["--kubernetes-namespace=other"], None, 111,
         r'namespaces "other" not found \(404 from http://\S+\); name another one with --'),
        (["--kubernetes-kind=jobset"], lambda c: c.missing.add("jobsets"), 111,
         r"the cluster has no jobsets.jobset.x-k8s.io in version v1alpha2: install JobSet, or "),
        (["--kubernetes-image=train:none", "--start-limit=1"], None, 111,
         r"plaunch-\S+ has not started within 1 s \(--start-limit\): "
         r"(ErrImagePull|ImagePullBackOff): pull of train:none: not found; Job plaunch-\w+ is "
         r"deleted; check the image"),
        (["--kubernetes-template=t.yaml"],
         lambda c: (c.folder / "t.yaml").write_text("kind: Job\nspec: {completion: 1}"), 111,
         r"cannot create Job plaunch-\w+: .*completion"),
        (["--nnodes=1:2"], lambda c: c.ignored.add("successPolicy"), 111,
         r"ignores spec.successPolicy of Job plaunch-\w+: the cluster needs a newer version"),
    ],
)  # fmt: skip
def test_what_the_cluster_refuses_is_one_line_and_leaves_nothing(
    idle, words, change, code, message
):
    if change:
        change(idle)
    command = start(idle, *words, "train.py")
    assert command.end() == code, command.text()
    *before, last = command.text().splitlines()
    assert re.search(message, last), command.text()
    assert not before or "train:none" in words[0]
    assert idle.objects == {}
    assert idle.pods == []


def test_an_image_without_plaunch(cluster):
    command = start(cluster, "--node-python=/no/python", "train.py", nodes=1)
    assert command.end() == 128, command.text()
    assert re.search(
        r"plaunch-\S+ ended with 128: StartError: .*exec: \"/no/python\": executable file not",
        command.text(),
    )
    assert "unable to retrieve container logs" in command.text()


def test_a_train_job_restarts_containers_before_it_fails(cluster):
    cluster.train_job_limit = 1
    command = start(
        cluster, "--nproc-per-node=1", "train.py", kind="trainjob", nodes=1,
        script="import sys; print('fails', flush=True); sys.exit(7)",
    )  # fmt: skip
    assert command.end() == 7, command.text()
    assert "] fails" in command.text()
    assert re.search(r"TrainJob plaunch-\w+ has failed: BackoffLimitExceeded", command.text())


def test_a_job_without_pods_shows_the_warning_of_the_cluster(idle):
    event = {"reason": "FailedCreate", "message": "exceeded quota"}
    idle.events = [{"about": "plaunch-[0-9a-f]+-node-0", **event}]  # the Job of the JobSet
    idle._start_pod = lambda job, index: None
    command = start(idle, "train.py", kind="jobset")
    command.wait_for("FailedCreate: exceeded quota")
    idle.delete("jobsets", next(name for plural, name in idle.objects if plural == "jobsets"))
    assert command.end() == 111
    assert "does not exist any more in namespace team" in command.text()


def test_a_cluster_that_cannot_be_reached(idle):
    text = idle.kubeconfig.read_text().replace(idle.url, "http://127.0.0.1:9")
    idle.kubeconfig.write_text(text)
    command = start(idle, "train.py")
    assert command.end() == 111
    assert re.fullmatch(
        r"plaunch: nothing was started: cannot create Job \S+: http://127.0.0.1:9 cannot be "
        r"reached: Failed to establish .* refused; this must work: kubectl get --raw /readyz\n",
        command.text(),
    )


@pytest.mark.parametrize("text", [None, "{", "a: b"])
def test_without_a_kubeconfig(idle, text):
    idle.kubeconfig.unlink() if text is None else idle.kubeconfig.write_text(text)
    command = start(idle, "train.py")
    assert command.end() == 2
    assert command.text().count("\n") == 1
    assert "--on=kubernetes: no cluster is configured (" in command.text()


def test_a_program_that_gives_no_credentials(idle):
    config = yaml.safe_load(idle.kubeconfig.read_text())
    command = {"command": "sh", "args": ["-c", "echo token has expired >&2; exit 1"]}
    program = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": {**program, **command}}
    idle.kubeconfig.write_text(yaml.safe_dump(config))
    command = start(idle, "train.py")
    assert command.end() == 2
    assert re.fullmatch(
        r"plaunch: error: --on=kubernetes: context 'x' gives no credentials for http://\S+ "
        r"\(exec: process returned 1. token has expired\); log in, or use another context\n",
        command.text(),
    )


def test_a_job_continues_without_its_command(cluster):
    command = start(cluster, "--nproc-per-node=1", "train.py", script=ROUNDS)
    command.wait_for(r"\] round", 3)
    command.process.kill()
    command.end()
    (cluster.folder / "done").touch()
    wait_until(lambda: all(pod.is_ended for pod in cluster.every_pod), command.text)
    assert [pod.code for pod in cluster.every_pod] == [0, 0, 0]


def test_a_reader_that_goes_away_does_not_end_the_job(cluster):
    script = "for i in range(20000): print(f'line {i}')"
    (cluster.folder / "train.py").write_text(script)
    words = ["--on=kubernetes", "--nnodes=1", "--kubernetes-image=train:1", "train.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "plaunch", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cluster.folder,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
    )  # fmt: skip
    assert process.stdout.readline().startswith(b"[plaunch-")
    process.stdout.close()
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert b"Traceback" not in err


@pytest.mark.slow
def test_a_stalled_reader_bounds_the_memory(cluster):
    script = f"import os\nfor i in range(400): os.write(1, b'x' * {1 << 20})\nos.write(1, b'\\n')"
    (cluster.folder / "train.py").write_text(script)
    words = ["--on=kubernetes", "--nnodes=1", "--kubernetes-image=train:1", "train.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "plaunch", *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=cluster.folder,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
    )  # fmt: skip
    assert process.stdout.readline().startswith(b"[plaunch-")
    read = 0
    while read < 64 << 20:
        read += len(process.stdout.read1(1 << 20))
    process.send_signal(signal.SIGINT)  # with a full pipe
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert process.wait(LIMIT) in (0, 130)  # 0 if the job had succeeded before
    process.stdout.close()
    assert int(peak[1]) < 200 << 10
