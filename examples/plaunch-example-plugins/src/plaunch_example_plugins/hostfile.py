"""Host files: the hosts of a job, and the number of workers on each.

Each line has one host, in the order of the nodes:

    # name   options
    alpha    slots=4
    beta     slots=2  addr=10.0.0.7

`slots` is 1 by default; `addr` is the address of the host for others, by default its name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from plaunch.errors import UsageError

FILE_VARIABLE = "HOSTFILE"
HOST_VARIABLE = "HOSTFILE_HOST"


@dataclass(frozen=True)
class Host:
    """One line of a host file."""

    name: str
    address: str
    slots: int = 1


def read_hosts(path: str | None = None) -> list[Host]:
    """Read the host file at `path`, by default that of the variable HOSTFILE.

    Raises:
        UsageError: the file cannot be read, or a line of it is malformed.
    """
    path = path or os.environ.get(FILE_VARIABLE)
    if not path:
        raise UsageError(f"no host file is given; set the variable {FILE_VARIABLE} to its path")
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise UsageError(f"the host file {path!r} cannot be read: {error.strerror}") from error
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_parse(words, f"{path}:{number}"))
    if not hosts:
        raise UsageError(f"the host file {path!r} names no host")
    return hosts


def find_this_host(hosts: list[Host], name: str | None = None) -> int:
    """Return the index of host `name` in `hosts`, by default of this machine.

    The variable HOSTFILE_HOST overrides the machine's name. If no full name matches, domains are
    ignored.

    Raises:
        UsageError: the host file does not name this host exactly once.
    """
    name = name or os.environ.get(HOST_VARIABLE) or os.uname().nodename
    for same in (str, _without_domain):
        places = [place for place, host in enumerate(hosts) if same(host.name) == same(name)]
        if len(places) == 1:
            return places[0]
    known = ", ".join(sorted(host.name for host in hosts))
    raise UsageError(
        f"the host file does not name host {name!r} exactly once; it names {known}. "
        f"Set {HOST_VARIABLE} to the name that this host has there"
    )


def _without_domain(name: str) -> str:
    return name.partition(".")[0]


def _parse(words: list[str], where: str) -> Host:
    name, *options = words
    values = {"addr": name, "slots": "1"}
    for option in options:
        key, _, value = option.partition("=")
        if key not in values or not value:
            raise UsageError(f"{where}: {option!r} is neither addr=ADDRESS nor slots=NUMBER")
        values[key] = value
    if not (values["slots"].isascii() and values["slots"].isdecimal()):
        raise UsageError(f"{where}: slots={values['slots']!r} is not a number")
    return Host(name, values["addr"], int(values["slots"]))
