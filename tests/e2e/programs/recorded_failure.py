"""Rank 1 fails in a function that torch's `record` decorates."""

import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("the data is gone")
    time.sleep(60)


if __name__ == "__main__":
    main()
