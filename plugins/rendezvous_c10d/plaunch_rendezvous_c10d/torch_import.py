"""The one place where torch is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import PluginLoadError

if TYPE_CHECKING:
    from types import ModuleType

_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def load_distributed() -> ModuleType:
    """Import `torch.distributed`, which takes a second or more, and return it.

    Each wait that times out makes torch's C++ side print two warnings. It reads its log level when
    it is loaded, so the level is set for that long only and never reaches the workers.

    Raises:
        PluginLoadError: torch is not installed, or cannot be loaded.
    """
    is_ours = _LOG_LEVEL not in os.environ
    if is_ours:
        os.environ[_LOG_LEVEL] = "ERROR"
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
        if is_ours:
            os.environ.pop(_LOG_LEVEL, None)
