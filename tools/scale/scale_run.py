"""Measures this machine, runs real and modelled jobs, and writes docs/scale.md.

    python tools/scale --measure             # the costs, and real jobs, on a quiet machine
    python tools/scale --model               # the jobs of the model with these costs
    python tools/scale --model --nodes=1024  # prints what happens to a job of so many nodes

All figures are in tools/scale/figures.json, and the tables of the page are made from it.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "reliability"))

import scale_page
from cluster_model import JobModel, ModelSettings
from costs import StoreCosts, measure_costs, measure_wakes
from real_runs import form_round, why_not
from result_file import find_commit

PROCESS_NODES = (256, 1024, 4096)  # of real jobs in one process
MODEL_NODES = (256, 1024, 4096, 10_240, 16_384)
_WAKES = (1024, 4096)
_REAL, _MODELLED = "--real-job", "--modelled-job"


def measure(figures: scale_page.Figures) -> None:
    """Measure the costs on this machine, and jobs in one process, really and in the model."""
    figures["machine"] = _describe_machine()
    print("costs of the store ...", flush=True)
    costs = measure_costs()
    figures["costs"] = asdict(costs)
    figures["wakes"] = {str(waiters): measure_wakes(waiters) for waiters in _WAKES}
    figures["real"] = real = []
    scale_page.keep_figures(figures)
    for nodes in PROCESS_NODES:
        problem = why_not(nodes)
        print(f"{nodes} nodes in one process{f': {problem}' if problem else ' ...'}", flush=True)
        if not problem:
            real.append(_in_a_process(_REAL, nodes))
            scale_page.keep_figures(figures)


def model(figures: scale_page.Figures, nodes: tuple[int, ...]) -> None:
    """Run the jobs of the model with the measured costs."""
    costs = StoreCosts(**figures["costs"])
    figures["settings"] = asdict(ModelSettings())
    in_process = []
    for run in figures["real"]:
        job = JobModel(run["nodes"], costs, ModelSettings(latency=0.0, is_one_process=True))
        seconds, server = job.form(), job.server
        in_process.append(
            {
                "nodes": job.size,
                "seconds": seconds,
                "server_cpu": server.core.busy,
                "nodes_cpu": job.nodes[0].core.busy,
                "requests": server.requests / job.size,
                "bytes": (server.received + server.sent) / job.size,
            }
        )
    figures["modelled"] = in_process
    print("jobs of one process: modelled", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # The largest job takes longest, and begins first.
        jobs = pool.map(lambda size: _in_a_process(_MODELLED, size), reversed(nodes))
        figures["jobs"] = list(jobs)[::-1]


def _in_a_process(option: str, nodes: int) -> object:
    """Run this program for one job in another process, whose threads and memory are fresh."""
    began = time.perf_counter()
    command = [sys.executable, os.path.dirname(__file__), f"{option}={nodes}"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{nodes} nodes: {time.perf_counter() - began:.0f} s", flush=True)
    return json.loads(run.stdout)


def _model_job(nodes: int) -> object:
    costs = StoreCosts(**scale_page.read_figures()["costs"])
    gc.disable()  # a job has millions of objects, and few cycles
    return asdict(JobModel(nodes, costs, ModelSettings()).figures())


def _describe_machine() -> dict[str, str]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": find_commit(),
        "cores": str(os.cpu_count()),
        "load before": f"{os.getloadavg()[0]:.0f} processes, on average of a minute",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python tools/scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="measure the costs, and real jobs")
    parser.add_argument("--model", action="store_true", help="run the jobs of the model")
    parser.add_argument("--nodes", type=int, help="only this number, and write nothing")
    parser.add_argument(_REAL, type=int, help=argparse.SUPPRESS)
    parser.add_argument(_MODELLED, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.getLogger("plaunch").setLevel(logging.ERROR)
    if args.real_job:
        print(json.dumps(asdict(form_round(args.real_job))))
        return 0
    if args.modelled_job:
        print(json.dumps(_model_job(args.modelled_job)))
        return 0
    if not (args.measure or args.model):
        parser.error("give --measure, --model, or both")
    figures = scale_page.read_figures()
    if args.measure:
        measure(figures)
    if args.nodes:
        model(figures, (args.nodes,))
        print(scale_page.jobs_table(figures))
        return 0
    if args.model:
        model(figures, MODEL_NODES)
        scale_page.write_figures(figures)
    return 0
