"""The options. Every command line imports this module, so it imports nothing else."""

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--podman-image",),
        "with --on=podman: the image of the containers, which has plaunch",
        metavar="IMAGE",
    ),
    Option(
        ("--podman-options",),
        "with --on=podman: options of podman run, such as --device=nvidia.com/gpu=all; may be "
        "repeated",
        metavar="OPTIONS",
        is_repeated=True,
    ),
)
