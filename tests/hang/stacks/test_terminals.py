"""Which system calls wait for input from a terminal, in made-up files of /proc and in real ones."""

from __future__ import annotations

import struct

import pytest
from plaunch_hang.stacks.taking import read_kernel_state
from plaunch_hang.stacks.terminals import find_terminal

from helpers.programs import running_python
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.terminals import Terminal
from helpers.waiting import wait_until

TTY, PIPE = "/dev/pts/3", "pipe:[12]"
FDS = {0: TTY, 1: PIPE, 5: "/dev/tty"}
READ_0, READ_1 = struct.pack("@ihh", 0, 1, 0), struct.pack("@ihh", 1, 1, 0)
WRITE_1 = struct.pack("@ihh", 1, 4, 0)


@pytest.fixture
def proc(tmp_path):
    """A folder of processes; `memory` is at address 0 of process 7."""
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    for fd, target in FDS.items():
        (folder / str(fd)).symlink_to(target)

    def call(memory=b""):
        (tmp_path / "7" / "mem").write_bytes(b"\0" * 16 + memory)
        return str(tmp_path)

    return call


@pytest.mark.parametrize(
    ("machine", "call", "memory", "terminal"),
    [
        ("x86_64", "0 0x0 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", b"", TTY),
        ("x86_64", "0 0x5 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", b"", "/dev/tty"),
        ("x86_64", "0 0x1 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", b"", ""),  # a pipe
        ("x86_64", "1 0x0 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", b"", ""),  # it writes
        ("aarch64", "63 0x0 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", b"", TTY),
        ("riscv64", "63 0x0 0x10 0x1 0x0 0x0 0x0 0x7f 0x7f", b"", ""),
        ("x86_64", "270 0x1 0x10 0x0 0x0 0x0 0x0 0x7f 0x7f", b"\x01", TTY),
        ("aarch64", "72 0x1 0x10 0x0 0x0 0x0 0x0 0x7f 0x7f", b"\x01", TTY),
        ("x86_64", "270 0x1 0x10 0x0 0x0 0x10 0x0 0x7f 0x7f", b"\x01", ""),  # with a limit
        ("x86_64", "270 0x2 0x10 0x0 0x0 0x0 0x0 0x7f 0x7f", b"\x03", ""),  # or for a pipe
        ("x86_64", "270 0x1 0x0 0x10 0x0 0x0 0x0 0x7f 0x7f", b"\x01", ""),
        ("x86_64", "7 0x10 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", READ_0, TTY),
        ("x86_64", "7 0x10 0x1 0xffffffffffffffff 0x0 0x0 0x0 0x7f 0x7f", READ_0, TTY),
        ("x86_64", "7 0x10 0x1 0x64 0x0 0x0 0x0 0x7f 0x7f", READ_0, ""),
        ("x86_64", "7 0x10 0x2 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", READ_0 + READ_1, ""),
        ("x86_64", "7 0x10 0x2 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", READ_0 + WRITE_1, TTY),
        ("x86_64", "271 0x10 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f", READ_0, TTY),
        ("x86_64", "7 0x10 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", b"", ""),
        ("x86_64", "7 0xffffffffffffff 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", b"", ""),
        ("x86_64", "7 0xfffffffffffffffff 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", b"", ""),
        ("x86_64", "running", b"", ""),
        ("x86_64", "-1 0x7f 0x7f", b"", ""),
        ("x86_64", "0", b"", ""),
        ("x86_64", "", b"", ""),
    ],
)
def test_system_calls(proc, machine, call, memory, terminal):
    assert find_terminal(7, call, proc(memory), machine) == terminal


@pytest.mark.usefixtures("readable_stacks")
@pytest.mark.parametrize("first", ["", "import readline; "])
def test_a_program_that_asks_at_a_terminal(first):
    with Terminal("-c", f"{first}input('> ')") as terminal:
        terminal.read_until(b"> ")
        pid = terminal.process.pid
        state = wait_until(
            lambda: (now := read_kernel_state(pid)) and now.terminal and now, "its read"
        )
        assert state.terminal.startswith("/dev/pts/")
        assert f"waits for input from {state.terminal}" in str(state)
        terminal.process.kill()


@pytest.mark.usefixtures("readable_stacks")
def test_a_program_that_reads_a_pipe():
    with running_python("-c", "print(flush=True); input()") as process:
        process.stdout.readline()
        wait_until(lambda: read_kernel_state(process.pid).state == "S", "it waits")
        assert read_kernel_state(process.pid).terminal == ""
