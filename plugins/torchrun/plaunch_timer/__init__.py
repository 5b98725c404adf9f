"""The old name of `plaunch_torchrun.elastic.timer`, for one version."""

from plaunch_torchrun.elastic.timer import *  # noqa: F403
from plaunch_torchrun.elastic.timer import __all__ as __all__
