"""plaunch: a pluggable launcher for distributed PyTorch training.

Every public name loads on first use, so that `import plaunch` costs next to nothing.
"""

from __future__ import annotations

from plaunch._version import __version__ as __version__
from plaunch.lazy import TYPE_CHECKING, attach

if TYPE_CHECKING:
    from plaunch import worker as worker
    from plaunch.config import LaunchConfig as LaunchConfig
    from plaunch.errors import ExitCode as ExitCode
    from plaunch.errors import PlaunchError as PlaunchError
    from plaunch.launch import elastic_launch as elastic_launch
    from plaunch.launch import launch_agent as launch_agent
    from plaunch.plugin import hookimpl as hookimpl
    from plaunch.process import record as record
    from plaunch.process import start_processes as start_processes

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".config": "LaunchConfig",
        ".errors": "ExitCode PlaunchError",
        ".launch": "elastic_launch launch_agent",
        ".plugin": "hookimpl",
        ".process": "record start_processes",
        ".worker": "",  # the module, for scripts that only `import plaunch`
    },
)
