"""The stacks of workers, read from outside: a library, and the plugin with its options.

`take` reads all threads of processes and their descendants, within a time limit; `own_stacks` reads
the processes alone. `group` groups ranks with the same stack, `merge` combines the groups of
several nodes, and `format_groups` formats them as lines. The public names load on first use.
Nothing is needed in the workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.agent import JobAnswers as JobAnswers  # as in plaunch 0.1.0
    from plaunch.agent import JobQuery as JobQuery
    from plaunch.agent import PublishedAnswer as PublishedAnswer

    from plaunch_hang.stacks.files import keep as keep
    from plaunch_hang.stacks.files import write as write
    from plaunch_hang.stacks.grouping import StackGroup as StackGroup
    from plaunch_hang.stacks.grouping import format_groups as format_groups
    from plaunch_hang.stacks.grouping import group as group
    from plaunch_hang.stacks.grouping import merge as merge
    from plaunch_hang.stacks.holds import describe_child_hold as describe_child_hold
    from plaunch_hang.stacks.holds import find_hold as find_hold
    from plaunch_hang.stacks.job_stacks import JobStacks as JobStacks
    from plaunch_hang.stacks.job_stacks import JobView as JobView
    from plaunch_hang.stacks.py_spy import find_py_spy as find_py_spy
    from plaunch_hang.stacks.records import dump_groups as dump_groups
    from plaunch_hang.stacks.records import load_groups as load_groups
    from plaunch_hang.stacks.stack import KernelState as KernelState
    from plaunch_hang.stacks.stack import ProcessStacks as ProcessStacks
    from plaunch_hang.stacks.stack import StackFrame as StackFrame
    from plaunch_hang.stacks.stack import ThreadStack as ThreadStack
    from plaunch_hang.stacks.taking import own_stacks as own_stacks
    from plaunch_hang.stacks.taking import take as take
    from plaunch_hang.stacks.variables import read_all_variables as read_all_variables
    from plaunch_hang.stacks.waiting import count_waiting as count_waiting
    from plaunch_hang.stacks.waiting import runs_program as runs_program
    from plaunch_hang.stacks.waiting import waits_for_children as waits_for_children
    from plaunch_hang.stacks.waiting import waits_for_process as waits_for_process
    from plaunch_hang.stacks.waiting import waits_for_program as waits_for_program
    from plaunch_hang.stacks.waiting import waits_for_thread as waits_for_thread

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "plaunch.agent": "JobAnswers JobQuery PublishedAnswer",
        ".stack": "KernelState ProcessStacks StackFrame ThreadStack",
        ".py_spy": "find_py_spy",
        ".taking": "own_stacks take",
        ".grouping": "StackGroup format_groups group merge",
        ".holds": "describe_child_hold find_hold",
        ".job_stacks": "JobStacks JobView",
        ".records": "dump_groups load_groups",
        ".files": "keep write",
        ".variables": "read_all_variables",
        ".waiting": (
            "count_waiting runs_program waits_for_children waits_for_process waits_for_program "
            "waits_for_thread"
        ),
    },
)
