"""docs/slurm.md and docs/kubernetes.md are correct."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from plaunch.cli.parser import installed_table, parse
from plaunch.errors import ExitCode
from plaunch.plugin import RENDEZVOUS, PluginManager
from plaunch.rendezvous import traits_of
from plaunch_command_line.advice import advise_on_options
from plaunch_schedulers.kubernetes import find_kubernetes_allocation
from plaunch_schedulers.mpi import find_mpi_allocation
from plaunch_schedulers.slurm import FIRST_PORT, PORTS, find_slurm_allocation

from helpers.environments import recorded

DOCS = Path(__file__).parents[2] / "docs"
SLURM, KUBERNETES = ((DOCS / f"{name}.md").read_text() for name in ("slurm", "kubernetes"))
FIELDS = {
    "nnodes": "nnodes",
    "node-rank": "node_rank",
    "rdzv-endpoint": "endpoint",
    "rdzv-id": "run_id",
    "job-id": "job_id",
}

MANAGER = PluginManager.create(environ={}, first_party_only=True)


def table(page, heading):
    """The cells of a section's table, by option."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `--([a-z-]+)` \|(.*)\|$", section, re.MULTILINE)
    return {option: [cell.strip() for cell in cells.split("|")] for option, cells in rows}


def variables(text):
    return set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", text))


def test_the_table_of_slurm_lists_the_variables():
    rows = table(SLURM, "What is taken from Slurm")
    sources = find_slurm_allocation(recorded("slurm-requeued-task1")).sources
    for option, field in FIELDS.items():
        documented = variables(" ".join(rows[option]))
        assert documented <= variables(sources[field])
        assert variables(sources[field]) - documented <= {"SLURM_JOB_ID", "SLURM_STEP_ID"}


@pytest.mark.parametrize(
    ("column", "name", "run_id"),
    [(0, "openmpi-in-slurm-3x1-rank1", "PMIX_NAMESPACE"), (1, "mpich-2x1-rank1", None)],
)
def test_the_table_of_mpi_lists_the_variables(column, name, run_id):
    rows = table(SLURM, "Under mpirun")
    sources = find_mpi_allocation(recorded(name)).sources
    assert sources.get("run_id") == run_id
    for option in ("nnodes", "node-rank"):
        assert rows[option][column] == f"`{sources[FIELDS[option]]}`"
    assert rows["rdzv-id"][column] == (f"`{run_id}`" if run_id else rows["rdzv-id"][column])


def test_the_table_of_kubernetes_lists_the_variables():
    rows = table(KUBERNETES, "What is taken from Kubernetes")
    found = find_kubernetes_allocation({"JOB_COMPLETION_INDEX": "0", "HOSTNAME": "NAME-0"})
    assert rows["node-rank"][0] == f"`{found.sources['node_rank']}`"
    assert f"`{found.endpoint}`" in rows["rdzv-endpoint"][1]


def test_the_example_of_the_message_is_right():
    job = re.search(r"rdzv_id=slurm-(\d+)\.(\d+) ", SLURM)
    environ = recorded("slurm-step-2x1-task0", SLURM_JOB_ID=job[1], SLURM_STEP_ID=job[2])
    port = find_slurm_allocation(environ).endpoint.rpartition(":")[2]
    assert re.search(rf"rdzv_endpoint=\w+:{port} ", SLURM)
    assert f"20000 + (job + 1021 · step) modulo {PORTS}" in SLURM
    assert f"{FIRST_PORT} to {FIRST_PORT + PORTS - 1}" in SLURM


def test_the_error_in_the_text_is_raised():
    with pytest.raises(ValueError, match="launchers on one node") as caught:
        find_slurm_allocation(recorded("slurm-step-2x8-task9"))
    assert f"plaunch: error: {caught.value}\n" in SLURM


def test_the_batch_script_is_valid():
    (script,) = re.findall(r"<!-- file: train.sbatch -->\n```sh\n(.*?)```", SLURM, re.DOTALL)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=20)
    assert "#SBATCH --ntasks-per-node=1\n" in script


def test_the_exit_codes_of_the_manifest_are_permanent_failures():
    section = KUBERNETES.partition("\n## When pods fail or are evicted\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \| .* \| (.*) \|$", section, re.MULTILINE)
    documented = {int(code): action for codes, action in rows for code in codes.split(", ")}
    (values,) = re.findall(r"values: \[(.*)\]", KUBERNETES)
    fatal = sorted(code for code, action in documented.items() if action == "`FailJob`")
    assert [int(code) for code in values.split(", ")] == fatal
    assert fatal == [ExitCode.USAGE, ExitCode.PLUGIN, ExitCode.RENDEZVOUS_CLOSED]
    assert set(documented) == {code for code in ExitCode if code > 1} | {137}


def test_the_trainjob_of_the_page_uses_c10d(caplog):
    (snippet,) = re.findall(r"```yaml\n(  trainer:\n.*?)```", KUBERNETES, re.DOTALL)
    environ = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "llm-node-0-0.llm",
        "PET_MASTER_PORT": "29500",
        "PET_RDZV_ID": "b0c9c1b2",
    }
    assert parse(["train.py"], environ).rdzv_backend == "static"
    words = re.findall(r"^      - (-\S+|/\S+)$", snippet, re.MULTILINE)
    args = parse([re.sub(r"\$\((\w+)\)", lambda m: environ[m[1]], w) for w in words], environ)
    assert (args.rdzv_backend, args.rdzv_endpoint) == ("c10d", "llm-node-0-0.llm:29500")
    assert (args.training_script, args.node_rank) == ("/workspace/train.py", 1)
    advise_on_options(args, traits_of(MANAGER.get(RENDEZVOUS, args.rdzv_backend)))
    assert caplog.text == ""


def test_all_options_exist():
    options = list(installed_table((), {}))
    known = {name for option in options for name in option.names}
    known |= {option.variable for option in options}
    for page in (SLURM, KUBERNETES):
        assert set(re.findall(r"\bPET_[A-Z_]*[A-Z]\b", page)) <= known
        for line in re.findall(r"plaunch (?:.*\\\n)*.*", page):
            command = line.replace("\\\n", "").partition(".py")[0]
            if line.startswith("plaunch --"):
                assert set(re.findall(r"(--[a-z-]+)(?:=| )", command)) <= known, line
    (manifest,) = re.findall(r"```yaml\n(apiVersion.*?)```", KUBERNETES, re.DOTALL)
    assert set(re.findall(r"- (--[a-z-]+)=", manifest)) <= known
    assert "\t" not in manifest
    # The Service, the Job, the Service's selector and the pods' subdomain have the same name.
    named = re.findall(r"^ +(?:name|batch.*job-name|subdomain): (\S+)", manifest, re.MULTILINE)
    assert named == ["train"] * 4
