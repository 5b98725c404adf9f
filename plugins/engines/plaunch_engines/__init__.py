"""Engines: `plaunch --on=ENGINE[:WHERE]` starts the agents of a job on its nodes.

Public names, for engines of other packages:

- `AgentProcess`: an agent that a program on this machine starts and is connected to, such as ssh.
- `parse_count`: reads the number in `--on=NAME:4`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_engines.agent_process import AgentProcess as AgentProcess
    from plaunch_engines.local import parse_count as parse_count

__getattr__, __dir__, __all__ = attach(
    __name__, {".local": "parse_count", ".agent_process": "AgentProcess"}
)
