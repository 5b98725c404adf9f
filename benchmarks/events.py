"""The cost of event handlers for an empty job: `null`, each of the others, and all together.

    python benchmarks/events.py [--repeat N] [--json FILE] [--check]

One round runs every selection of handlers once, so that a busy machine affects all equally. The
traces of `otel` go to a small server in this process, by OTLP over HTTP.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import statistics
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Measurement, command, finish, start

if TYPE_CHECKING:
    from collections.abc import Iterator

HANDLERS = ("null", "console", "jsonl", "otel", "console,jsonl,otel")
REST = 1.5  # seconds between two runs
LIMIT = 1.15  # of the wall time with `null`


class Collector(http.server.BaseHTTPRequestHandler):
    """Accepts and discards all requests."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Run a server for traces, and yield its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def wall(handlers: str, script: str, folder: str, url: str) -> float:
    """Run an empty job of two workers with these event handlers; return milliseconds."""
    argv = command(
        "plaunch",
        "--nproc-per-node=2",
        f"--log-dir={folder}",
        f"--event-log-handler={handlers}",
        script,
    )
    begin = time.perf_counter()
    finish(start(argv, env={"OTEL_EXPORTER_OTLP_ENDPOINT": url}))
    return (time.perf_counter() - begin) * 1e3


def main() -> int:
    parser = measuring.parser(__doc__.partition("\n")[0], repeat=15)
    args = parser.parse_args()
    measurements = {name: Measurement(f"empty job, events to {name}", "ms") for name in HANDLERS}
    with tempfile.TemporaryDirectory() as folder, collector() as url:
        script = os.path.join(folder, "none.py")
        with open(script, "w"):
            pass  # an empty script: only the launcher is measured
        for number in range(-1, args.repeat):
            for name, measurement in measurements.items():
                value = wall(name, script, folder, url)
                # An abandoned export must not disturb the next one; and a machine
                # that has rested is slower at first, so all rest equally.
                time.sleep(REST)
                if number >= 0:  # the first round only fills caches
                    measurement.add("plaunch", value)
    measuring.print_platform(args.repeat)
    measuring.print_table(list(measurements.values()))
    # Differences within each round, because the machine changes between rounds.
    ratios = {
        name: statistics.median(
            one / null
            for one, null in zip(
                measurement.samples["plaunch"],
                measurements["null"].samples["plaunch"],
                strict=True,
            )
        )
        for name, measurement in measurements.items()
    }
    print()
    for name, ratio in ratios.items():
        print(f"{name:24} {100 * (ratio - 1):+6.1f} % of null")
    goal = Goal("console,jsonl,otel: at most 15 % more than null", ratios[HANDLERS[-1]], LIMIT)
    return measuring.report([goal], list(measurements.values()), args, ratios=ratios)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"events.py: {error}")
