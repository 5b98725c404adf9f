"""Redirects, tee, and the layout of a log folder."""

import os
import sys

from api import multiprocessing, show

Std = multiprocessing.Std
specs = multiprocessing.DefaultLogsSpecs(
    log_dir="logs", redirects={0: Std.ALL, 1: Std.OUT}, tee={0: Std.OUT, 1: Std.ERR}
)
context = multiprocessing.start_processes(
    "job",
    "sh",
    {rank: ("-c", f"echo out{rank}; echo err{rank} >&2") for rank in range(2)},
    {0: {}, 1: {}},
    specs,
    log_line_prefixes={0: "[zero]:", 1: "[one]:"},
)
context.wait(20)
context.close()
for folder, _, files in sorted(os.walk("logs")):
    for file in sorted(files):
        path = os.path.join(folder, file)
        short = "/".join(path.split("/")[-2:])
        show(**{short: open(path).read()})
sys.stdout.flush()
sys.stderr.flush()
show(console=sorted(open("stdout").read().split()), errors=sorted(open("stderr").read().split()))
show(out={r: os.path.basename(p) for r, p in context.stdouts.items()})
