"""What follows a failure of the job: the contract of restart policies.

Every public name loads on first use.
"""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING, attach

if TYPE_CHECKING:
    from plaunch.restarts.api import Cause as Cause
    from plaunch.restarts.api import Decided as Decided
    from plaunch.restarts.api import Decision as Decision
    from plaunch.restarts.api import Failure as Failure
    from plaunch.restarts.api import RestartAction as RestartAction
    from plaunch.restarts.api import RestartPolicy as RestartPolicy
    from plaunch.restarts.first_cause import failure_of as failure_of

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".api": "Cause Decided Decision Failure RestartAction RestartPolicy",
        ".first_cause": "failure_of",
    },
)
