"""Lists of hosts, endpoints and the variables of schedulers."""

from __future__ import annotations

from pathlib import Path

from plaunch.errors import UsageError
from plaunch_network import expand_hostlist, join_host_port, parse_rendezvous_endpoint
from plaunch_schedulers.kubernetes import find_kubernetes_allocation
from plaunch_schedulers.mpi import find_mpi_allocation
from plaunch_schedulers.slurm import find_slurm_allocation

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_equal, check_message

MAX_LENGTH = 1024
WORDS = (
    b"node[01-03,07]", b"[0-65535]", b"[::1]:29500", b"fe80::1%eth0", b"2(x3),1", b"://", b"-",
    b"SLURM_JOB_ID=", b"SLURM_STEP_NODELIST=", b"SLURM_NNODES=", b"SLURM_NODEID=",
    b"JOB_COMPLETION_INDEX=", b"HOSTNAME=", b"PMI_RANK=", b"OMPI_COMM_WORLD_SIZE=",
    b"OMPI_COMM_WORLD_RANK=", b"SLURM_TASKS_PER_NODE=", b"SLURM_STEP_ID=", b"SLURM_PROCID=",
    b"SLURM_NTASKS=", b"SLURM_STEP_NUM_NODES=", b"SLURM_STEP_NUM_TASKS=", b"PMI_SIZE=",
)  # fmt: skip
_MOST_HOSTS = 1 << 16
_NO_HOSTS = Path("/dev/null")
_FINDERS = (
    find_slurm_allocation,
    lambda environ: find_kubernetes_allocation(environ, _NO_HOSTS),
    find_mpi_allocation,
)


def check(data):
    """Read a list, an endpoint or an allocation; what cannot be read is a usage error."""
    choices = Choices(data)
    kind = choices.number(3)
    try:
        if kind == 0:
            _check_list(choices.rest.decode("utf-8", "surrogateescape"))
        elif kind == 1:
            _check_endpoint(choices.rest.decode("utf-8", "surrogateescape"))
        else:
            _check_allocation(choices)
    except UsageError as error:
        check_message(str(error))


def _check_list(text):
    hosts = expand_hostlist(text)
    if not 0 < len(hosts) <= _MOST_HOSTS:
        raise Finding(f"{len(hosts)} hosts")
    if len(hosts) < 1000 and not any(":" in host for host in hosts):
        check_equal(expand_hostlist(",".join(hosts)), hosts, "the hosts of a list")


def _check_endpoint(text):
    host, port = parse_rendezvous_endpoint(text, 29400)
    if not (host and 0 <= port <= 65535):
        raise Finding(f"host {host!r}, port {port}")
    check_message(host)
    again = parse_rendezvous_endpoint(join_host_port(host, port), 0)
    check_equal(again, (host, port), "the endpoint of a host and a port")


def _check_allocation(choices):
    find = choices.one_of(_FINDERS)
    pairs = (line.partition("=") for line in choices.rest.decode(errors="replace").split("\n"))
    environ = {name: value for name, _, value in pairs if name and "\0" not in value}
    found = find(environ)
    if found.endpoint:
        parse_rendezvous_endpoint(found.endpoint, 1)
