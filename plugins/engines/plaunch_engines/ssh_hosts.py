"""The hosts of the engine `ssh`: a list in the command line, or a host file."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.numbers import MOST_WORKERS, digits
from plaunch_network import expand_hostlist

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_USER = r"(?:(?P<user>[^\s@:/-][^\s:/]*)@)?"
_IP6 = r"[0-9a-fA-F]*:[0-9a-fA-F.:]*:[0-9a-fA-F.:]*(?:%[\w.-]+)?"
_FORMS = tuple(
    re.compile(_USER + form)
    for form in (
        rf"\[(?P<host>{_IP6})\](?::(?P<port>\d+))?",
        rf"(?P<host>{_IP6})",
        r"(?P<host>\w[\w.-]*)(?::(?P<port>\d+))?",
    )
)
# Words of host files that do not concern a launcher, which starts one agent on each host.
_IGNORED = ("max_slots", "max-slots")


@dataclass(frozen=True)
class SshHost:
    """One host.

    Args:
        name: the host, with the port if one was given: its name in messages.
        target: what ssh connects to: a host or an alias, perhaps with a user.
        port: its port; empty for that of the configuration of ssh.
        slots: the number of workers that a host file gives; None without one.
        python: the Python that a host file or an option gives; empty for that of the job.
    """

    name: str
    target: str
    port: str = ""
    slots: int | None = None
    python: str = ""

    def is_named(self, name: str) -> bool:
        """Whether a list of hosts means this one: by its name, also without the port and user."""
        return name in (self.name, self.target, self.target.rpartition("@")[2])


def parse_hosts(where: str) -> list[SshHost]:
    """Read `HOST,HOST` or `@FILE`; `node[1-16]` stands for several hosts.

    Raises:
        UsageError: there are no hosts, one is invalid or is named twice, or the file is not
            readable.
    """
    if where.startswith("@"):
        hosts = _read_file(where[1:])
    else:
        hosts = _parse_list(where, f"--on=ssh:{where}")
    for name, count in Counter(host.name for host in hosts).items():
        if count > 1:
            raise UsageError(
                f"--on=ssh:{where}: {name!r} is named {count} times; each host runs one agent, "
                "whose number of workers is --nproc-per-node"
            )
    return hosts


def _read_file(path: str) -> list[SshHost]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--on=ssh:@{path}: cannot read the host file: {reason}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            hosts += _parse_line(words, f"{path}, line {number}")
    if not hosts:
        raise UsageError(
            f"--on=ssh:@{path}: there are no hosts in the file; write one on each line"
        )
    return hosts


def _parse_line(words: list[str], place: str) -> list[SshHost]:
    slots = None
    python = ""
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name == "slots":
            slots = digits(value, MOST_WORKERS)
            if not slots:
                raise UsageError(
                    f"{place}: {word!r}: slots is a whole number from 1 to {MOST_WORKERS}"
                )
        elif name == "python" and value:
            python = value
        elif name not in _IGNORED:
            raise UsageError(
                f"{place}: {word!r} is not known; write HOST, HOST slots=N or HOST python=PATH"
            )
    return [replace(h, slots=slots, python=python) for h in _parse_list(words[0], place)]


def _parse_list(text: str, place: str) -> list[SshHost]:
    """Read `HOST,HOST`, in which brackets stand for several hosts."""
    try:
        found = expand_hostlist(text)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    return [_parse_host(each.strip(), place) for each in found]


def _parse_host(text: str, place: str) -> SshHost:
    found = next((match for form in _FORMS if (match := form.fullmatch(text))), None)
    if found is None:
        raise UsageError(
            f"{place}: {text!r} is not a host; write HOST, USER@HOST, HOST:PORT, [IPv6]:PORT "
            "or node[1-16]"
        )
    parts = found.groupdict()
    host, user, port = parts["host"], parts["user"], parts.get("port") or ""
    if port and not digits(port, 65535):
        raise UsageError(f"{place}: {text!r}: a port is a number from 1 to 65535")
    shown = f"[{host}]" if ":" in host and port else host
    return SshHost(
        name=f"{shown}:{port}" if port else host,
        target=f"{user}@{host}" if user else host,
        port=port,
    )


def exclude_hosts(hosts: Sequence[SshHost], excluded: Sequence[str]) -> list[SshHost]:
    """Return the hosts without some of them.

    Args:
        hosts: the hosts.
        excluded: the names of those to leave out.

    Raises:
        UsageError: a name is not that of a host, or no host is left.
    """
    for name in excluded:
        _check_is_one(hosts, name, "--exclude")
    left = [host for host in hosts if not any(map(host.is_named, excluded))]
    if not left:
        raise UsageError("--exclude leaves no host of --on=ssh; name fewer, or more hosts")
    return left


def set_pythons(hosts: Sequence[SshHost], pythons: Mapping[str, str]) -> list[SshHost]:
    """Return the hosts, each with its Python.

    Args:
        hosts: the hosts.
        pythons: paths by the name of a host, which have priority over a host file.

    Raises:
        UsageError: a name is not that of a host.
    """
    for name in pythons:
        _check_is_one(hosts, name, "--node-python")
    return [
        replace(host, python=next((p for n, p in pythons.items() if host.is_named(n)), host.python))
        for host in hosts
    ]


def _check_is_one(hosts: Sequence[SshHost], name: str, option: str) -> None:
    if not any(host.is_named(name) for host in hosts):
        from plaunch.plugin import did_you_mean  # errors only

        hint = did_you_mean(name, [host.name for host in hosts])
        raise UsageError(f"{option}: {name!r} is not a host of --on=ssh{hint}")
