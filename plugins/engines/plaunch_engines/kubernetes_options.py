"""The options of `--on=kubernetes`."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--kubernetes-image",),
        "with --on=kubernetes: the image of the pods, which has plaunch and the script",
        metavar="IMAGE",
    ),
    Option(
        ("--kubernetes-namespace",),
        "with --on=kubernetes: the namespace (default: that of the current context)",
        metavar="NAME",
    ),
    Option(
        ("--kubernetes-kind",),
        "with --on=kubernetes: an Indexed Job, a JobSet, or a TrainJob of Kubeflow Trainer "
        "(default: job)",
        default="job",
        metavar="KIND",
        choices=("job", "jobset", "trainjob"),
    ),
    Option(
        ("--kubernetes-resources",),
        "with --on=kubernetes: resources of each pod, such as nvidia.com/gpu=8,memory=512Gi",
        metavar="NAME=AMOUNT,...",
    ),
    Option(
        ("--kubernetes-template",),
        "with --on=kubernetes: a YAML file with parts of the manifests, which replace or complete "
        "those that plaunch writes",
        metavar="FILE",
        path="file",
    ),
)
