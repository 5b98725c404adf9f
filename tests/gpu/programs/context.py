"""Makes a context on the device; the first attempt fails then."""

import sys
import time

was_imported = "torch" in sys.modules

import torch  # noqa: E402
from worker import ATTEMPT, RANK, say, work  # noqa: E402

was_initialized = torch.cuda.is_initialized()
value = work(torch)
say(
    f"context.{ATTEMPT}.{RANK}",
    imported=was_imported,
    initialized=was_initialized,
    work=value,
    at=time.time(),
)
sys.exit(3 if ATTEMPT == 0 else 0)
