"""The options that start a job on several nodes."""

from __future__ import annotations

from plaunch.durations import Duration
from plaunch.options import LIMIT, Option, integer, seconds

# Selects an engine in programs for torchrun (`plaunch_torchrun.nodes`). Not for agents.
ENGINE_VARIABLE = "PET_ON"

_UNUSED = "plaunch_engines.plan:refuse_options_of_engines"  # called by a launch without --on

OPTIONS = (
    Option(
        ("--on",),
        "start one agent on each node, through an engine: local:N, ssh:HOST,HOST, ssh:@FILE, "
        "slurm, ray, kubernetes, or a plugin's; all other options are those of each agent",
        metavar="ENGINE[:WHERE]",
        plugins="engines",
        command="plaunch_engines.command:run_on_nodes",
    ),
    Option(
        ("--spares",),
        "with --on: the number of further nodes, which wait to replace lost ones (default: 0)",
        default=0,
        metavar="N",
        read=integer,
        fill=_UNUSED,
    ),
    Option(
        ("--pass-env",),
        "with --on: environment variables that agents get from here, beside those of plaunch and "
        "the usual libraries; a final * stands for any characters, and NAME=VALUE, with all that "
        "follows, sets another value; may be repeated",
        metavar="NAME,...",
        is_repeated=True,
        fill=_UNUSED,
    ),
    Option(
        ("--pass-secret",),
        "with --on=kubernetes: a variable whose value is that of a key of a Secret; the key is the "
        "name of the variable if that is not given; may be repeated",
        metavar="[VARIABLE=]NAME:KEY",
        is_repeated=True,
        fill=_UNUSED,
    ),
    Option(
        ("--node-python",),
        "with --on: the Python of the agents on their nodes (default: this one); with --on=ssh, "
        "also that of some hosts, as in node[5-8]=/opt/python; may be repeated",
        metavar="[HOSTS=]PATH",
        is_repeated=True,
        fill=_UNUSED,
    ),
    Option(
        ("--node-output",),
        "with --on: a folder for a file with the output of each node, DIR/JOB/NODE.log, on this "
        "machine; the console shows it as well",
        metavar="DIR",
        path="directory",
        fill=_UNUSED,
    ),
    Option(
        ("--node-setup",),
        "with --on: a line that a login shell (bash) of each node runs before the agent, such as "
        "'module load cuda'; if it fails, the node has not started",
        default="",
        metavar="LINE",
        fill=_UNUSED,
    ),
    Option(
        ("--exclude",),
        "with --on=ssh, slurm, ray or kubernetes: hosts that are not used, such as node[3,7-9]; "
        "may be repeated",
        metavar="HOSTS",
        is_repeated=True,
        is_shared=True,
        fill=_UNUSED,
    ),
    Option(
        ("--local-network",),
        "with --on=local: where the nodes meet; namespaces gives each node its own network, which "
        "only root can create, and no connection to others (default: loopback)",
        default="loopback",
        metavar="NETWORK",
        choices=("loopback", "namespaces"),
        fill=_UNUSED,
    ),
    Option(
        ("--ray-resources",),
        'with --on=ray: what Ray reserves on each node for the job, as in {"CPU": 16, "GPU": 8} '
        "(default: one CPU)",
        default="{}",
        metavar="JSON",
        fill=_UNUSED,
    ),
    Option(
        ("--slurm-options",),
        "with --on=slurm outside of an allocation, and with --on=slurm:batch: options of salloc or "
        'sbatch, such as "--partition=gpu --time=8:00:00 --gpus-per-node=8"; may be repeated',
        metavar="OPTIONS",
        is_repeated=True,
        fill=_UNUSED,
    ),
    Option(
        ("--ssh-command",),
        "with --on=ssh: the program that connects, with its options; those have priority over "
        "plaunch's (default: ssh)",
        default="ssh",
        metavar="COMMAND",
        fill=_UNUSED,
    ),
    Option(
        ("--store-host",),
        "with --on: what hosts the rendezvous store of c10d: this command, so that the job "
        "survives the loss of any node, or the first node; auto: this command if all nodes reach "
        "it quickly (default: auto)",
        default="auto",
        metavar="HOST",
        choices=("auto", "command", "node"),
        fill=_UNUSED,
    ),
    Option(
        ("--start-limit",),
        "with --on: time for all agents to report that they are ready (default: 60)",
        default=60.0,
        metavar="SECONDS",
        read=seconds(LIMIT),
        fill=_UNUSED,
    ),
    Option(
        ("--silence-limit",),
        "with --on=ssh and --on=slurm: time without a sign of the command, which may be suspended "
        "or cut off, after which agents end their workers, from 5 seconds; inf for never (default: "
        "40)",
        default=40.0,
        metavar="SECONDS",
        read=seconds(Duration(least=5.0, may_be_endless=True)),
        fill=_UNUSED,
    ),
    Option(
        ("--kubernetes-image",),
        "with --on=kubernetes: the image of the pods, which has plaunch and the script",
        metavar="IMAGE",
        fill=_UNUSED,
    ),
    Option(
        ("--kubernetes-namespace",),
        "with --on=kubernetes: the namespace (default: that of the current context)",
        metavar="NAME",
        fill=_UNUSED,
    ),
    Option(
        ("--kubernetes-kind",),
        "with --on=kubernetes: an Indexed Job, a JobSet, or a TrainJob of Kubeflow Trainer "
        "(default: job)",
        default="job",
        metavar="KIND",
        choices=("job", "jobset", "trainjob"),
        fill=_UNUSED,
    ),
    Option(
        ("--kubernetes-resources",),
        "with --on=kubernetes: resources of each pod, such as nvidia.com/gpu=8,memory=512Gi",
        metavar="NAME=AMOUNT,...",
        fill=_UNUSED,
    ),
    Option(
        ("--kubernetes-shm",),
        "with --on=kubernetes: the limit of /dev/shm in each pod, as part of its memory "
        "(default: 64Gi)",
        metavar="AMOUNT",
        fill=_UNUSED,
    ),
    Option(
        ("--kubernetes-template",),
        "with --on=kubernetes: a YAML file with parts of the manifests, which replace or complete "
        "those that plaunch writes",
        metavar="FILE",
        path="file",
        fill=_UNUSED,
    ),
)
