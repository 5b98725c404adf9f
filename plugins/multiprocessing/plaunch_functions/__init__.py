"""The old name of `plaunch_multiprocessing`, for one version."""

from plaunch_multiprocessing import *  # noqa: F403
from plaunch_multiprocessing import __all__ as __all__
