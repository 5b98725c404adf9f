"""What holds processes, from stacks that were recorded in real debuggers."""

from __future__ import annotations

import pytest
from plaunch_hang.stacks import (
    KernelState,
    ProcessStacks,
    StackFrame,
    ThreadStack,
    find_hold,
    format_groups,
    group,
)
from plaunch_hang.stacks.holds import count_debugger

PYTHON = "/usr/lib/python3.11/"
SITE = "/venv/lib/python3.11/site-packages/"
PYDEVD = f"{SITE}debugpy/_vendored/pydevd/"
PYCHARM = "/opt/pycharm/plugins/python-ce/helpers/pydev/"
USER = ("step /job/train.py", "<module> /job/train.py")
RUNPY = ("_run_code <frozen runpy>", "_run_module_as_main <frozen runpy>")
TRACE = (f"Bdb.dispatch_line {PYTHON}bdb.py", f"Bdb.trace_dispatch {PYTHON}bdb.py")
BY_PDB = (
    "<module> <string>",
    f"Bdb.run {PYTHON}bdb.py",
    f"Pdb._run {PYTHON}pdb.py",
    f"main {PYTHON}pdb.py",
    f"<module> {PYTHON}pdb.py",
    *RUNPY,
)
BY_DEBUGPY = (
    f"_run_code {PYDEVD}_pydevd_bundle/pydevd_runpy.py",
    f"run_file {SITE}debugpy/server/cli.py",
    f"<module> {SITE}debugpy/__main__.py",
    *RUNPY,
)
BY_PYCHARM = (
    f"execfile {PYCHARM}_pydev_imps/_pydev_execfile.py",
    f"PyDB.run {PYCHARM}pydevd.py",
    f"<module> {PYCHARM}pydevd.py",
)
PROMPT = (
    f"Cmd.cmdloop {PYTHON}cmd.py",
    f"Pdb._cmdloop {PYTHON}pdb.py",
    f"Pdb.interaction {PYTHON}pdb.py",
)
AT_LINE = (*PROMPT, f"Pdb.user_line {PYTHON}pdb.py", *TRACE)
DIST = f"{SITE}torch/distributed/__init__.py"
SUSPENDS = ("PyDB._do_wait_suspend {}pydevd.py", "PyDB.do_wait_suspend {}pydevd.py")
TRACES = "PyDBFrame.trace_dispatch {}_pydevd_bundle/pydevd_frame.py"

# What holds a process with these frames at once, and what does once it has not moved for long.
STACKS = {
    "breakpoint()": ((*AT_LINE, *USER), "at a prompt of pdb", ""),
    "pdb runs the script": ((*AT_LINE, *USER, *BY_PDB), "at a prompt of pdb", ""),
    "pdb after an exception": (
        (*PROMPT, f"main {PYTHON}pdb.py", f"<module> {PYTHON}pdb.py", *RUNPY),
        "at a prompt of pdb",
        "",
    ),
    "post_mortem()": ((*PROMPT, f"post_mortem {PYTHON}pdb.py", *USER), "at a prompt of pdb", ""),
    "a command of pdb": (
        (f"sleep_in_repr {SITE}acme/x.py", f"Pdb.default {PYTHON}pdb.py", *AT_LINE, *USER),
        "at a prompt of pdb",
        "",
    ),
    "torch.distributed.breakpoint()": (
        (*PROMPT, f"_DistributedPdb.interaction {DIST}", *TRACE, f"breakpoint {DIST}", *USER),
        "at a prompt of pdb",
        "",
    ),
    "pdb++": ((f"Pdb._cmdloop {SITE}pdbpp.py", *TRACE, *USER), "at a prompt of pdb", ""),
    "ipdb": (
        (
            f"Condition.wait {PYTHON}threading.py",
            f"Future.result {PYTHON}concurrent/futures/_base.py",
            f"TerminalPdb.cmdloop {SITE}IPython/terminal/debugger.py",
            f"Pdb.interaction {PYTHON}pdb.py",
            f"Pdb.interaction {SITE}IPython/core/debugger.py",
            f"Pdb.user_line {PYTHON}pdb.py",
            *TRACE,
            *USER,
        ),
        "at a prompt of ipdb",
        "",
    ),
    "pudb": (
        (
            f"EpollSelector.select {PYTHON}selectors.py",
            f"Screen.get_input {SITE}urwid/display/_raw_display_base.py",
            f"DebuggerUI.event_loop {SITE}pudb/debugger.py",
            f"Debugger.user_line {SITE}pudb/debugger.py",
            *TRACE,
            *USER,
        ),
        "at a prompt of pudb",
        "",
    ),
    "IPython.embed()": (
        (
            f"EpollSelector.select {PYTHON}selectors.py",
            f"BaseEventLoop.run_forever {PYTHON}asyncio/base_events.py",
            f"Application.run {SITE}prompt_toolkit/application/application.py",
            f"TerminalInteractiveShell.interact {SITE}IPython/terminal/interactiveshell.py",
            f"InteractiveShellEmbed.mainloop {SITE}IPython/terminal/embed.py",
            *USER,
        ),
        "at a prompt of IPython",
        "",
    ),
    "code.interact()": (
        (
            f"InteractiveConsole.raw_input {PYTHON}code.py",
            f"interact {PYTHON}code.py",
            *USER,
        ),
        "at a prompt of Python",
        "",
    ),
    "debugpy.wait_for_client()": (
        (
            f"Event.wait {PYTHON}threading.py",
            f"_wait_for_attach {PYDEVD}pydevd.py",
            f"wait_for_client_cls.__call__ {SITE}debugpy/server/api.py",
            *USER,
        ),
        "stopped in debugpy",
        "",
    ),
    "debugpy waits for a client before the script": (
        (
            f"Event.wait {PYTHON}threading.py",
            f"_wait_for_attach {PYDEVD}pydevd.py",
            *BY_DEBUGPY[1:],
        ),
        "stopped in debugpy",
        "",
    ),
    "a breakpoint of debugpy": (
        (
            f"Event.wait {PYTHON}threading.py",
            *(line.format(PYDEVD) for line in SUSPENDS),
            TRACES.format(PYDEVD),
            *USER,
            *BY_DEBUGPY,
        ),
        "stopped in debugpy",
        "",
    ),
    "a breakpoint of PyCharm": (
        (
            *(line.format(PYCHARM) for line in SUSPENDS),
            TRACES.format(PYCHARM),
            *USER,
            *BY_PYCHARM,
        ),
        "stopped in pydevd",
        "",
    ),
    "a script that pdb runs": ((*USER, *BY_PDB), "", "run by pdb"),
    "a script that debugpy runs": ((*USER, *BY_DEBUGPY), "", ""),
    "a script that PyCharm runs": ((*USER, *BY_PYCHARM), "", ""),
    "a script": (USER, "", ""),
    "a script named pdb.py": (("step /job/pdb.py", "<module> /job/bdb.py"), "", ""),
    "a library": ((f"all_reduce {SITE}torch/distributed/distributed_c10d.py", *USER), "", ""),
    "nothing": ((), "", ""),
}


def frames_of(lines):
    return tuple(StackFrame(*line.split(" ", 1), 7) for line in lines)


def process(lines=(), *, kernel=None, children=()):
    threads = (ThreadStack("MainThread", 1, frames_of(lines), is_main=True),)
    return ProcessStacks(1, threads=threads, kernel=kernel, children=children)


@pytest.mark.parametrize("what", STACKS)
def test_debuggers_in_the_process(what):
    lines, at_once, later = STACKS[what]
    assert find_hold(process(lines)) == at_once
    assert find_hold(process(lines), is_still=True) == (at_once or later)
    assert bool(count_debugger(frames_of(lines))) == bool(at_once)


def test_input_from_a_terminal():
    kernel = KernelState("S", terminal="/dev/pts/3")
    assert find_hold(process(USER, kernel=kernel)) == "waiting for input from /dev/pts/3"
    assert find_hold(process((*AT_LINE, *USER), kernel=kernel)) == "at a prompt of pdb"


@pytest.mark.parametrize(
    ("tracer", "how"),
    [
        ("gdb", "traced by gdb (pid 9)"),
        ("cuda-gdb", "traced by cuda-gdb (pid 9)"),
        ("lldb-server", "traced by lldb-server (pid 9)"),
        ("strace", ""),
        ("proot", ""),  # a sandbox
        ("", ""),
    ],
)
def test_a_debugger_outside_holds_a_process_that_does_not_move(tracer, how):
    kernel = KernelState("S", tracer=9, tracer_name=tracer)
    assert find_hold(process(USER, kernel=kernel)) == ""
    assert find_hold(process(USER, kernel=kernel), is_still=True) == how


WAITS = (f"Popen._try_wait {PYTHON}subprocess.py", f"run {PYTHON}subprocess.py", *USER)


@pytest.mark.parametrize(("lines", "is_held"), [(WAITS, True), (USER, False)])
def test_a_process_that_waits_for_one_that_is_held(lines, is_held):
    suspended = ProcessStacks(2, reason="it is not Python", kernel=KernelState("T"))
    shell = ProcessStacks(3, reason="it is not Python", children=(suspended,))
    how = find_hold(process(lines, children=(shell,)))
    assert how == ("waiting for process 2, which is suspended" if is_held else "")


def test_ranks_that_are_held_come_first_and_without_frames_of_the_debugger():
    others = process((f"barrier {SITE}torch/distributed/distributed_c10d.py", *USER))
    held = process(STACKS["torch.distributed.breakpoint()"][0])
    found = format_groups(group({"a": {0: others, 1: held, 2: others}}))
    assert found == [
        "1 rank: 1 breakpoint <- step (train.py:7), at a prompt of pdb",
        "2 ranks: 0, 2 barrier <- step (train.py:7)",
    ]
