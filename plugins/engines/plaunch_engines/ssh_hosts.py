"""The hosts of the engine `ssh`: a list in the command line, or a host file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plaunch.errors import UsageError
from plaunch.numbers import MOST_WORKERS, digits

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
    """

    name: str
    target: str
    port: str = ""
    slots: int | None = None


def parse_hosts(where: str) -> list[SshHost]:
    """Read `HOST,HOST` or `@FILE`.

    Raises:
        UsageError: there are no hosts, one is invalid or is named twice, or the file is not
            readable.
    """
    if where.startswith("@"):
        hosts = _read_file(where[1:])
    else:
        hosts = [_parse_host(text.strip(), f"--on=ssh:{where}") for text in where.split(",")]
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"--on=ssh:{where}: {name!r} is named {names.count(name)} times; each host runs "
                "one agent, whose number of workers is --nproc-per-node"
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
            hosts.append(_parse_line(words, f"{path}, line {number}"))
    if not hosts:
        raise UsageError(
            f"--on=ssh:@{path}: there are no hosts in the file; write one on each line"
        )
    return hosts


def _parse_line(words: list[str], place: str) -> SshHost:
    host = _parse_host(words[0], place)
    slots = None
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name == "slots":
            slots = digits(value, MOST_WORKERS)
            if not slots:
                raise UsageError(
                    f"{place}: {word!r}: slots is a whole number from 1 to {MOST_WORKERS}"
                )
        elif name not in _IGNORED:
            raise UsageError(f"{place}: {word!r} is not known; write HOST or HOST slots=N")
    return SshHost(host.name, host.target, host.port, slots)


def _parse_host(text: str, place: str) -> SshHost:
    found = next((match for form in _FORMS if (match := form.fullmatch(text))), None)
    if found is None:
        raise UsageError(
            f"{place}: {text!r} is not a host; write HOST, USER@HOST, HOST:PORT or [IPv6]:PORT"
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
