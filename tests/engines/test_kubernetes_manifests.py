"""The manifests of `--on=kubernetes`, checked with the published schemas, and templates."""

import json
import re
import sys
import warnings
from pathlib import Path

import pytest
from plaunch.cli import main
from plaunch.errors import UsageError
from plaunch_engines.kubernetes_manifests import PodJob, escape, grace
from plaunch_engines.kubernetes_template import Template

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

VERSIONS = ["1.29.0", "1.31.0", "1.34.0", "1.37.0"]
ALL = {
    "namespace": "team",
    "image": "train:1",
    "env": {"NCCL_DEBUG": "INFO"},
    "resources": {"nvidia.com/gpu": "8", "memory": "512Gi"},
    "secrets": {"WANDB_API_KEY": ("wandb", "key")},
    "exclude": ["node3"],
    "token": "secret",
}


def manifests(kind="job", low=2, high=2, **more):
    return PodJob(
        name="plaunch-1", kind=kind, arguments=["--nproc-per-node=8", "--", "train.py"],
        min_nodes=low, max_nodes=high, **{**ALL, **more},
    ).manifests()  # fmt: skip


def validate(manifest, version):
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="no schemas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("low", [1, 2])
def test_the_schemas_of_kubernetes(version, low):
    for manifest in manifests(low=low):
        if (
            version < "1.31"
            and "successPolicy" in manifest["spec" if "spec" in manifest else "kind"]
        ):
            del manifest["spec"]["successPolicy"]  # a variable number of nodes needs 1.31
        validate(manifest, version)


def pods_of(job):
    """Return the template of the pods of a Job or a JobSet."""
    spec = job["spec"]
    if job["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_pods_keep_the_rules_of_restricted_namespaces(kind):
    """Those of the Pod Security Standard "restricted"."""
    pod = pods_of(manifests(kind)[-1])["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {*pod} & {"hostNetwork", "hostPID", "hostIPC"} == set()
    assert all({*volume} <= {"name", "emptyDir"} for volume in pod["volumes"])


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_pods_are_spread_over_hosts_that_are_not_excluded(kind):
    pods = pods_of(manifests(kind)[-1])
    [spread] = pods["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    labels = spread["labelSelector"]["matchLabels"].items()
    assert labels <= pods["metadata"]["labels"].items()
    text = json.dumps(pods["spec"]["affinity"])
    assert '"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node3"]' in text
    assert "affinity" not in pods_of(manifests(kind, exclude=())[-1])["spec"]


def test_shared_memory_has_a_limit():
    for shm in ("64Gi", "8Gi"):
        [volume] = pods_of(manifests(shm=shm)[-1])["spec"]["volumes"]
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": shm}


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_all_objects_have_the_common_labels(kind):
    for manifest in manifests(kind):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "plaunch"
        assert labels["app.kubernetes.io/instance"] == manifest["metadata"]["name"]


def env_of(job):
    return {entry["name"]: entry for entry in pods_of(job)["spec"]["containers"][0]["env"]}


def test_a_token_from_a_secret_of_the_user():
    created = manifests(secrets={"PLAUNCH_RDZV_TOKEN": ("mine", "token")}, token="")
    assert [each["kind"] for each in created] == ["Service", "Job"]
    source = env_of(created[-1])["PLAUNCH_RDZV_TOKEN"]["valueFrom"]
    assert source == {"secretKeyRef": {"name": "mine", "key": "token"}}


PRINT = ["--on=kubernetes:print", "--nnodes=2", "--kubernetes-image=train:1"]


@pytest.mark.parametrize("token", [None, "f" * 40])
def test_print_does_not_show_the_token(token, monkeypatch, capfd):
    if token:
        monkeypatch.setenv("PLAUNCH_RDZV_TOKEN", token)
    else:
        monkeypatch.delenv("PLAUNCH_RDZV_TOKEN", raising=False)
    assert main([*PRINT, "--kubernetes-namespace=team", "train.py"]) == 0
    out, err = capfd.readouterr()
    service, job = yaml.safe_load_all(out)
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    source = env_of(job)["PLAUNCH_RDZV_TOKEN"]["valueFrom"]["secretKeyRef"]
    value = "$PLAUNCH_RDZV_TOKEN" if token else "$(openssl rand -hex 32)"
    assert (
        f"kubectl create secret generic {source['name']} --namespace=team "
        f'--from-literal={source["key"]}="{value}"\n'
    ) in err
    assert not re.search("[0-9a-f]{32}", out + err)


def test_print_with_a_secret_of_the_user_needs_no_command(capfd):
    words = ["--pass-secret=PLAUNCH_RDZV_TOKEN=mine:token", "--pass-env=A=b,c"]
    assert main([*PRINT, *words, "--kubernetes-shm=1Gi", "train.py"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    *_, job = yaml.safe_load_all(out)
    source = env_of(job)["PLAUNCH_RDZV_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert source == {"name": "mine", "key": "token"}
    assert env_of(job)["A"]["value"] == "b,c"
    assert pods_of(job)["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] == "1Gi"


def test_the_schemas_refuse_a_misspelt_field():
    job = manifests()[-1]
    job["spec"]["completionmode"] = "Indexed"
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="no schemas")
    with pytest.raises(kubernetes_validate.ValidationError, match="completionmode"):
        validate(job, VERSIONS[-1])


@pytest.mark.parametrize(
    ("kind", "model"),
    [("jobset", "JobsetV1alpha2JobSet"), ("trainjob", "TrainerV1alpha1TrainJob")],
)
def test_the_models_of_jobset_and_kubeflow(kind, model):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="no models of Kubeflow")
    manifest = manifests(kind)[-1]
    read = getattr(models, model).from_dict(manifest)
    # What the models do not know is lost.
    assert json.loads(read.to_json()) == manifest
    if kind == "jobset":
        job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
        validate({"apiVersion": "batch/v1", "kind": "Job", "spec": job}, VERSIONS[-1])


def test_the_templates_of_the_documentation(tmp_path):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="no models of Kubeflow")
    page = (Path(__file__).parents[2] / "docs/engines.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    pods, train_job = (text for text in blocks if "kind: Role" not in text)
    *_, job = merged(tmp_path, pods)
    validate(job, VERSIONS[-1])
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    *_, job = merged(tmp_path, train_job, "trainjob")
    read = models.TrainerV1alpha1TrainJob.from_dict(job)
    assert json.loads(read.to_json()) == job


def test_a_train_job_has_no_variable_that_kubeflow_sets(monkeypatch, capfd):
    for name, value in (
        ("PET_NNODES", "2"), ("PET_NPROC_PER_NODE", "4"), ("PET_MAX_RESTARTS", "3"),
        ("PET_KUBERNETES_IMAGE", "train:1"), ("NCCL_DEBUG", "INFO"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert main(["--on=kubernetes:print", "--kubernetes-kind=trainjob", "train.py"]) == 0
    [job] = yaml.safe_load_all(capfd.readouterr().out)
    trainer = job["spec"]["trainer"]
    env = {entry["name"]: entry for entry in trainer["env"]}
    assert sorted(env) == ["PET_MAX_RESTARTS", "PET_RDZV_ID", "PLAUNCH_RDZV_TOKEN"]
    assert trainer["numNodes"] == 2
    assert trainer["args"] == [
        "--nnodes=2", "--rdzv-backend=c10d",
        "--rdzv-endpoint=$(PET_MASTER_ADDR):$(PET_MASTER_PORT)", "--nproc-per-node=4",
        "--", "train.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "variables", "seconds"),
    [
        ([], {}, 60),
        (["--shutdown-timeout=300"], {}, 330),
        ([], {"PET_SHUTDOWN_TIMEOUT": "90"}, 120),
        (["--shutdown-timeout=inf"], {}, 7 * 86400),
        # It is not a variable that pods get.
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90"}, 60),
    ],
)
def test_pods_have_more_time_to_end_than_workers(words, variables, seconds, monkeypatch, capfd):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = ["--on=kubernetes:print", "--nnodes=2", "--kubernetes-image=train:1", *words]
    assert main([*words, "train.py"]) == 0
    job = list(yaml.safe_load_all(capfd.readouterr().out))[-1]
    assert grace(job) == seconds


def test_exit_codes_of_pods_are_those_of_plaunch(monkeypatch, capfd):
    monkeypatch.setenv("PLAUNCH_EXIT_CODE", "torchrun")
    words = ["--on=kubernetes:print", "--nnodes=2", "--kubernetes-image=train:1"]
    assert main([*words, "train.py"]) == 0
    assert "PLAUNCH_EXIT_CODE" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "kind: Job\nspec: null",
        "kind: Job\nspec: {template: null}",
        "kind: PodTemplate\ntemplate: {spec: {$patch: replace, containers: [{name: a}]}}",
    ],
)
def test_a_template_that_removes_the_agent(text, tmp_path, capfd):
    path = tmp_path / "t.yaml"
    path.write_text(text)
    words = ["--nnodes=2", "--kubernetes-image=train:1", f"--kubernetes-template={path}"]
    assert main(["--on=kubernetes:print", *words, "train.py"]) == 2
    assert "--kubernetes-template removes container node" in capfd.readouterr().err


def test_variables_of_the_rendezvous_have_priority_in_a_train_job():
    env = {"PET_RDZV_BACKEND": "etcd-v2", "PET_RDZV_ENDPOINT": "etcd:2379"}
    args = manifests("trainjob", env=env)[-1]["spec"]["trainer"]["args"]
    assert args == ["--nnodes=2", "--nproc-per-node=8", "--", "train.py"]


def test_the_words_of_the_user_are_not_expanded():
    assert escape("$(HOME) $$ $x") == "$$(HOME) $$$$ $$x"


def test_print_needs_no_client(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    argv = ["--on=kubernetes:print", "--nnodes=2", "--kubernetes-image=train:1", "train.py"]
    assert main(argv) == 0
    assert "completions: 2" in capfd.readouterr().out
    argv[0] = "--on=kubernetes"
    assert main(argv) == 2
    message = capfd.readouterr().err
    assert "--on=kubernetes needs the client of Kubernetes (" in message
    assert "pip install 'plaunch[kubernetes]'" in message
    assert message.count("\n") == 1
    monkeypatch.setitem(sys.modules, "yaml", None)
    argv[0] = "--on=kubernetes:print"
    assert main(argv) == 2
    assert "--on=kubernetes needs PyYAML (" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on=kubernetes:show"], "--on=kubernetes:show is unknown; choose from"),
        (["--on=kubernetes"], "--on=kubernetes needs a number of nodes (--nnodes)"),
        (
            ["--on=kubernetes", "--nnodes=2", "--spares=1"],
            "--spares: Kubernetes replaces",
        ),
        (["--on=kubernetes", "--nnodes=2"], "--on=kubernetes needs the image of the pods"),
        (["--on=kubernetes", "--nnodes=1:2", "--kubernetes-kind=trainjob"], "has a fixed number"),
        (
            ["--on=kubernetes", "--nnodes=2", "--kubernetes-kind=pod"],
            "'pod' is not one of job,",
        ),
        (
            ["--on=kubernetes", "--nnodes=2", "--kubernetes-resources=gpu"],
            "'gpu' is not NAME=",
        ),
        (["--on=kubernetes", "--nnodes=2", "--kubernetes-shm=lots"], "'lots' is not an amount of"),
        (["--on=kubernetes", "--nnodes=2", "--pass-secret=key"], "'key' is not VARIABLE=NAME:KEY"),
        (
            ["--on=kubernetes", "--nnodes=2", "--pass-secret=wandb:api-key"],
            "'api-key' is not the name of a variable; write VARIABLE=wandb:api-key",
        ),
        (
            ["--on=kubernetes", "--nnodes=2", "--pass-secret=a:KEY", "--pass-secret=KEY=b:c"],
            "--pass-secret=KEY=b:c: KEY is set twice",
        ),
        (
            ["--on=kubernetes", "--nnodes=2", "--pass-secret=PET_NNODES=b:c"],
            "PET_NNODES is set for each pod by plaunch",
        ),
        (["--on=kubernetes", "--nnodes=2", "--pass-env=NOSUCH"], "NOSUCH is not set here"),
        (["--on=kubernetes", "--nnodes=2", "--pass-env=PET_NNODES=3"], "PET_NNODES cannot be pas"),
        (["--on=kubernetes", "--nnodes=2", "--node-output=o"], "--node-output has no effect with"),
        (["--on=kubernetes", "--nnodes=2", "--node-setup=true"], "--node-setup has no effect with"),
        (
            [*PRINT, "--kubernetes-kind=trainjob", "--exclude=node1"],
            "--exclude: the runtime of a TrainJob decides",
        ),
        (
            [*PRINT, "--kubernetes-kind=trainjob", "--kubernetes-shm=1Gi"],
            "--kubernetes-shm: the runtime of a TrainJob has its volumes",
        ),
        (
            ["--on=kubernetes", "--nnodes=2", "--kubernetes-template=no.yaml"],
            "--kubernetes-template: no.yaml: No such file",
        ),
    ],
)
def test_usage_errors(words, message, capfd):
    assert main([*words, "train.py"]) == 2
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == 1


# --- templates ----------------------------------------------------------------------------------


def merged(tmp_path, text, kind="job"):
    path = tmp_path / "template.yaml"
    path.write_text(text)
    return Template(str(path)).apply(manifests(kind))


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_a_pod_template_is_merged(tmp_path, kind):
    *_, job = merged(
        tmp_path,
        """
apiVersion: v1
kind: PodTemplate
template:
  metadata: {labels: {team: nlp}}
  spec:
    restartPolicy: null
    nodeSelector: {gpu: h100}
    containers:
      - name: node
        image: other:2
        env:
          - {name: NCCL_DEBUG, value: WARN}
          - {name: MORE, value: "1"}
        volumeMounts:
          - {name: data, mountPath: /data}
      - {name: sidecar, image: proxy}
    volumes:
      - {name: data, persistentVolumeClaim: {claimName: data}}
""",
        kind,
    )
    spec = job["spec"]
    if kind == "jobset":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    node, sidecar = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in node["env"]}
    assert (node["image"], env["NCCL_DEBUG"], env["MORE"]) == ("other:2", "WARN", "1")
    assert "PLAUNCH_RDZV_TOKEN" in env
    assert [each["mountPath"] for each in node["volumeMounts"]] == ["/dev/shm", "/data"]
    assert [each["name"] for each in pod["volumes"]] == ["shm", "data"]
    assert sidecar["name"] == "sidecar"
    assert "restartPolicy" not in pod
    labels = spec["template"]["metadata"]["labels"]
    assert (labels["team"], labels["app.kubernetes.io/name"]) == ("nlp", "plaunch")


def test_other_objects_are_merged_and_parts_replaced(tmp_path):
    _, service, job = merged(
        tmp_path,
        """
kind: Job
metadata: {labels: {kueue.x-k8s.io/queue-name: gpus}}
spec:
  backoffLimitPerIndex: 0
  podFailurePolicy: {$patch: replace, rules: []}
---
kind: Service
spec: {ipFamilyPolicy: PreferDualStack}
---
""",
    )
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert job["metadata"]["name"] == "plaunch-1"
    assert (job["spec"]["backoffLimitPerIndex"], job["spec"]["completions"]) == (0, 2)
    assert job["spec"]["podFailurePolicy"] == {"rules": []}
    assert service["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Job\nspec: [", "template.yaml, line 2: "),
        ("kind: Job\nspec:\n  suspend: true\n  suspend: false", "line 4: 'suspend' occurs twice"),
        ("kind: {a: b}: c", "line 1: "),
        ("kind: Job\n? [a]\n: b", "line 2: a key is not a text"),
        ("- a", "template.yaml: document 1 has no kind"),
        ("kind: Job\n---\nspec: {}", "document 2 has no kind"),
        ("kind: Job\n---\nkind: Job", "there are two documents of the kind Job; write one"),
        ("kind: Job\nmetadata: {labels: {day: 2026-01-01}}", "cannot be written as JSON, "),
        ("kind: Job\nspec: &a {b: *a}", "cannot be written as JSON, in which it is sent: Circ"),
        ("kind: Deployment",
         "template.yaml: this job has no 'Deployment'; choose from Job, PodTemplate, Secret, Serv"),
        ("kind: Job\nspec: {template: {spec: {containers: {a: b}}}}",
         "Job.spec.template.spec.containers is a mapping, and has to be a list"),
        ("kind: Job\nspec: 3", "Job.spec is 3, and has to be a mapping"),
        ("kind: Job\nspec: {completionMode: [a]}",
         "Job.spec.completionMode is a list, and has to be like 'Indexed'"),
        ("kind: Job\nspec: {$patch: delete}", "Job.spec.$patch is 'delete', and can only be"),
        ("kind: Job\nmetadata: {name: x}",
         "Job.metadata.name is 'x', and this command sets 'plaunch-1'; leave it out"),
        ("kind: Job\nmetadata: {name: null}", "Job.metadata.name is None, and this command sets"),
        ("kind: Secret\n$patch: replace", "Secret.apiVersion is None, and this command sets 'v1'"),
        ("kind: Job\nmetadata: {namespace: x}",
         "Job.metadata.namespace is 'x', and --kubernetes-namespace sets 'team'"),
        ("kind: Job\napiVersion: v2", "Job.apiVersion is 'v2', and this command sets 'batch/v1'"),
        ("kind: PodTemplate\nspec: {}", "PodTemplate.spec is unknown; changes belong to PodTempl"),
        ("kind: PodTemplate\ntemplate: {spec: {containers: [{image: x}]}}",
         "PodTemplate.template.spec.containers has an item without a name"),
    ],
)  # fmt: skip
def test_errors_of_a_template_name_the_place(tmp_path, text, message):
    with pytest.raises(UsageError) as caught:
        merged(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_train_job_has_no_pod_template(tmp_path):
    with pytest.raises(UsageError, match="choose from Secret, TrainJob"):
        merged(tmp_path, "kind: PodTemplate", "trainjob")
