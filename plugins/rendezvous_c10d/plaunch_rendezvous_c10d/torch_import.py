"""The only module that imports torch."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from plaunch.errors import PluginLoadError

from plaunch_rendezvous_c10d.torch_log import LEVEL_VARIABLE

if TYPE_CHECKING:
    from types import ModuleType


def load_distributed() -> ModuleType:
    """Import `torch.distributed`, which takes a second or more, and return it.

    Messages of its C++ code during the import are suppressed. torch reads its log level then, so
    the variable is set only for the import and never reaches the workers. After the import,
    `torch_log` does the same.

    Raises:
        PluginLoadError: torch is not installed, or cannot be loaded.
    """
    sets_level = LEVEL_VARIABLE not in os.environ and "torch" not in sys.modules
    if sets_level:
        os.environ[LEVEL_VARIABLE] = "ERROR"
    try:
        import torch.distributed

        if not torch.distributed.is_available():
            raise ImportError("this build of torch has no torch.distributed")  # noqa: TRY301
        distributed: ModuleType = torch.distributed
        return distributed
    except (ImportError, OSError) as error:
        text = " ".join(str(error).split())
        missing = isinstance(error, ModuleNotFoundError) and str(error.name).startswith("torch")
        advice = "; pip install 'plaunch[c10d]'" if missing else ""
        raise PluginLoadError(
            f"rendezvous backend 'c10d' cannot be loaded: {type(error).__name__}: {text}{advice}"
        ) from error
    finally:
        if sets_level:
            os.environ.pop(LEVEL_VARIABLE, None)
