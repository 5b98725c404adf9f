"""The manifests of `--on=kubernetes`, checked with the published schemas, and templates."""

import json
import sys
import warnings

import pytest
from plaunch.cli import main
from plaunch.errors import UsageError
from plaunch_engines.kubernetes_manifests import PodJob, escape
from plaunch_engines.kubernetes_template import apply_template, read_template

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

VERSIONS = ["1.29.0", "1.31.0", "1.34.0", "1.37.0"]
ALL = {
    "namespace": "team",
    "image": "train:1",
    "env": {"NCCL_DEBUG": "INFO"},
    "resources": {"nvidia.com/gpu": "8", "memory": "512Gi"},
}


def manifests(kind="job", low=2, high=2, **more):
    return PodJob(
        name="plaunch-1", kind=kind, arguments=["--nproc-per-node=8", "--", "train.py"],
        token="secret", min_nodes=low, max_nodes=high, **{**ALL, **more},
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


def test_a_train_job_has_no_variable_that_kubeflow_sets(monkeypatch, capfd):
    for name, value in (
        ("PET_NNODES", "2"), ("PET_NPROC_PER_NODE", "4"), ("PET_MAX_RESTARTS", "3"),
        ("PET_KUBERNETES_IMAGE", "train:1"), ("NCCL_DEBUG", "INFO"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert main(["--on=kubernetes:print", "--kubernetes-kind=trainjob", "train.py"]) == 0
    secret, job = yaml.safe_load_all(capfd.readouterr().out)
    trainer = job["spec"]["trainer"]
    env = {entry["name"]: entry for entry in trainer["env"]}
    assert sorted(env) == ["PET_MAX_RESTARTS", "PET_RDZV_ID", "PLAUNCH_RDZV_TOKEN"]
    assert trainer["numNodes"] == 2
    assert trainer["args"] == [
        "--nnodes=2", "--rdzv-backend=c10d",
        "--rdzv-endpoint=$(PET_MASTER_ADDR):$(PET_MASTER_PORT)", "--nproc-per-node=4",
        "--", "train.py",
    ]  # fmt: skip
    assert len(secret["stringData"]["token"]) == 64
    assert secret["stringData"]["token"] not in json.dumps(job)


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
        (["--on=kubernetes:show"], "--on=kubernetes:show: choose from apply, print"),
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
        (["--on=kubernetes", "--nnodes=2", "--kubernetes-template=no.yaml"], "No such file"),
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
    return apply_template(manifests(kind), read_template(str(path)))


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
    assert spec["template"]["metadata"] == {"labels": {"team": "nlp"}}


def test_other_objects_are_merged_and_parts_replaced(tmp_path):
    _, service, job = merged(
        tmp_path,
        """
kind: Job
metadata: {labels: {kueue.x-k8s.io/queue-name: gpus}}
spec:
  backoffLimit: 0
  podFailurePolicy: {$patch: replace, rules: []}
---
kind: Service
spec: {ipFamilyPolicy: PreferDualStack}
---
""",
    )
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpus"}
    assert job["metadata"]["name"] == "plaunch-1"
    assert (job["spec"]["backoffLimit"], job["spec"]["completions"]) == (0, 2)
    assert job["spec"]["podFailurePolicy"] == {"rules": []}
    assert service["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Job\nspec: [", "template.yaml, line 2: "),
        ("kind: Job\nspec:\n  suspend: true\n  suspend: false", "line 4: 'suspend' occurs twice"),
        ("kind: {a: b}: c", "line 1: "),
        ("- a", "document 1 is a list, not a mapping with a kind"),
        ("kind: Deployment", "kind 'Deployment' is not a kind of this job's manifests; choose"),
        ("kind: Job\nspec: {template: {spec: {containers: {a: b}}}}",
         "Job.spec.template.spec.containers is a list, and a mapping in the template"),
        ("kind: Job\nspec: 3", "Job.spec is a mapping, and 3 in the template"),
        ("kind: Job\nspec: {completionMode: [a]}",
         "Job.spec.completionMode is 'Indexed', and a list in the template"),
        ("kind: Job\nspec: {$patch: delete}", "Job.spec.$patch is 'delete'; it can only be"),
        ("kind: Job\nmetadata: {name: x}", "Job.metadata.name is 'x', and this job's is plaunch-1"),
        ("kind: Job\napiVersion: v2", "Job.apiVersion is 'v2', and this job's is batch/v1"),
        ("kind: PodTemplate\nspec: {}", "PodTemplate.spec is unknown; a PodTemplate has"),
    ],
)  # fmt: skip
def test_errors_of_a_template_name_the_place(tmp_path, text, message):
    with pytest.raises(UsageError) as caught:
        merged(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_train_job_has_no_pod_template(tmp_path):
    with pytest.raises(UsageError, match=r"choose from ..Secret., .TrainJob"):
        merged(tmp_path, "kind: PodTemplate", "trainjob")
