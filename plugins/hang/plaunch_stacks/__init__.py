"""The old name of `plaunch_hang.stacks`, for one version."""

from plaunch_hang.stacks import *  # noqa: F403
from plaunch_hang.stacks import __all__ as __all__
