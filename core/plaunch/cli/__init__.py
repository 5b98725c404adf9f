"""The command line: `main` is the process boundary, `run` raises and returns.

A program that launches as the command line does calls the same functions: `parse`; `fill_in`,
which calls plugins such as schedulers; `worker_command` and `config_from_args`, which create the
arguments of `plaunch.launch_agent`. `installed_table` returns all options as data.

An option is defined in `options` (a plugin's in its own module), parsed in `parser`, and goes into
a `LaunchConfig` or the workers' command in `settings`. `entry` starts and ends the process,
`program` runs a launch, or the command of an option, with an `Invocation`, and `console` writes.
"""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING, attach

if TYPE_CHECKING:
    from plaunch.cli.console import STDERR as STDERR
    from plaunch.cli.entry import end as end
    from plaunch.cli.entry import end_at_signals as end_at_signals
    from plaunch.cli.entry import entry_point as entry_point
    from plaunch.cli.entry import open_missing_streams as open_missing_streams
    from plaunch.cli.file_systems import await_file_system as await_file_system
    from plaunch.cli.invocation import Invocation as Invocation
    from plaunch.cli.parser import Arguments as Arguments
    from plaunch.cli.parser import OptionTable as OptionTable
    from plaunch.cli.parser import installed_table as installed_table
    from plaunch.cli.parser import parse as parse
    from plaunch.cli.program import concluded as concluded
    from plaunch.cli.program import main as main
    from plaunch.cli.program import run as run
    from plaunch.cli.program import set_up_logging as set_up_logging
    from plaunch.cli.script import run_script_path as run_script_path
    from plaunch.cli.settings import config_from_args as config_from_args
    from plaunch.cli.settings import determine_local_world_size as determine_local_world_size
    from plaunch.cli.settings import fill_in as fill_in
    from plaunch.cli.settings import parse_min_max_nnodes as parse_min_max_nnodes
    from plaunch.cli.settings import parse_rdzv_conf as parse_rdzv_conf
    from plaunch.cli.settings import worker_command as worker_command
    from plaunch.cli.stdin import read_script as read_script
    from plaunch.cli.stdin import reads_stdin as reads_stdin
    from plaunch.launch.prepare import LaunchComponents as LaunchComponents

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".console": "STDERR",
        ".file_systems": "await_file_system",
        ".entry": "end end_at_signals entry_point open_missing_streams",
        ".invocation": "Invocation",
        ".parser": "Arguments OptionTable installed_table parse",
        ".program": "concluded main run set_up_logging",
        ".script": "run_script_path",
        ".settings": (
            "config_from_args determine_local_world_size fill_in parse_min_max_nnodes "
            "parse_rdzv_conf worker_command"
        ),
        ".stdin": "read_script reads_stdin",
        "plaunch.launch.prepare": "LaunchComponents",
    },
)
