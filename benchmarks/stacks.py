"""The cost of reading the stacks of a node's workers: wall time, and CPU time of all processes.

The workers are processes in Python that sleep, each in one of eight functions. `plaunchctl stacks`
has two seconds for a node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from plaunch_hang.stacks import group, own_stacks, take

CODE = """
import sys, time
def place_{0}():
    print(flush=True)
    time.sleep(3600)
place_{0}()
"""
PLACES = 8
BOUND = 60.0  # seconds for one reading


@contextlib.contextmanager
def sleeping(count):
    """Start sleeping processes; yield their pids by rank."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", CODE.format(rank % PLACES)], stdout=subprocess.PIPE
        )
        for rank in range(count)
    ]
    try:
        for process in processes:
            process.stdout.readline()
        yield {rank: process.pid for rank, process in enumerate(processes)}
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            process.stdout.close()


def used():
    """Return the CPU seconds of this process and its reaped children."""
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def measure(look, pids, **options):
    """Return wall seconds, CPU seconds, and the number of stacks."""
    began, before = time.perf_counter(), used()
    seen = look(pids, **options)
    took, cost = time.perf_counter() - began, used() - before
    groups = group({"node": seen})
    return {
        "seconds": took,
        "processor": cost,
        "stacks": sum(len(item.all_ranks) for item in groups if item.frames),
        "groups": len(groups),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="8,64,256", help="numbers of workers")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", help="a file for all samples")
    options = parser.parse_args()
    samples = []
    print(f"{len(os.sched_getaffinity(0))} processors")
    print("workers  look              seconds  of processors  stacks  groups")
    for count in map(int, options.workers.split(",")):
        with sleeping(count) as pids:
            for name, look, more in (
                ("processes", own_stacks, {"timeout": BOUND}),
                ("all, 60 s", take, {"timeout": BOUND}),
                ("all, 2 s", take, {"timeout": 2.0}),
            ):
                found = [measure(look, pids, **more) for _ in range(options.repeat)]
                samples += [{"workers": count, "look": name, **one} for one in found]
                seconds, cost = (
                    statistics.median(one[key] for one in found) for key in ("seconds", "processor")
                )
                print(
                    f"{count:7}  {name:14}  {seconds:9.2f}  {cost:13.2f}  "
                    f"{min(one['stacks'] for one in found):6}  {found[-1]['groups']:6}"
                )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
