"""Makes the page with the results of all benchmarks, in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from measuring import LAUNCHERS, Measurement, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HEAD = """\
# Results of the benchmarks

This page is what `{command}`
has written; nothing in it is edited by hand. [Benchmarks](../benchmarks/README.md) explains every
row, and how it is measured.
"""

QUICK = """
**This was a quick run**: one round of the least that can be measured. It shows that the benchmarks
work; its figures say nothing.
"""

READING = """
## How to read it

- **Ratios count**, not milliseconds: plaunch and torchrun take turns on the same machine, so what
  disturbs one disturbs the other. Another machine has other milliseconds, but about these ratios.
- Less is better in every row. `bare` is the least that is possible: a Python interpreter without a
  launcher. `plaunch : bare` is how many times that plaunch takes, `torchrun : plaunch` how many
  times what plaunch takes torchrun takes.
- Figures are medians. The machine is small and noisy, and does other things at times: `range` has
  the least and the greatest sample of plaunch. Where it is wide, another run has another median.
- All nodes of a job are on this one machine and share its cores, so many nodes take longer than on
  machines of their own. A real network adds its latency, of which there is hardly any here.
"""

ROUND_COLUMNS = {
    "nodes": "nodes",
    "seconds": "seconds",
    "cpu_seconds": "CPU s",
    "ops_per_node": "ops/node",
    "bytes_read_per_node": "bytes read/node",
    "bytes_written_per_node": "bytes written/node",
    "leader_ops": "leader",
    "heartbeat_ops": "beats",
}


def make_page(content: Mapping[str, Any]) -> str:
    """Return the whole page; `content` is the JSON object of `run_all.py --json`."""
    parts = [HEAD.format(command=content["command"])]
    if content["is_quick"]:
        parts.append(QUICK)
    parts += [READING, "\n## Where and with what\n\n", _table(["", ""], _circumstances(content))]
    parts += ["\n## Goals\n\n", *_goals(content["benchmarks"])]
    for benchmark in content["benchmarks"]:
        parts += _section(benchmark)
    return "".join(parts)


def _circumstances(content: Mapping[str, Any]) -> Iterator[list[str]]:
    yield ["date", f"{content['date']}, in {content['seconds'] / 60:.1f} minutes"]
    for name, value in {**content["machine"], **content["versions"]}.items():
        yield [name, value]


def _goals(benchmarks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for benchmark in benchmarks:
        result = benchmark["result"]
        for text, met in result.get("goals", {}).items():
            value = f"{result['values'][text]:.3g}"
            rows.append([benchmark["title"], text, value, "met" if met else "**missed**"])
    met = sum(row[-1] == "met" for row in rows)
    yield f"{met} of {len(rows)} are met.\n"
    lacking = [one["title"] for one in benchmarks if one["problem"]]
    if lacking:
        yield f"Those of {'; '.join(lacking)} were not measured.\n"
    if rows:
        yield "\n" + _table(["of", "goal", "is", ""], rows)


def _section(benchmark: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## {benchmark['title']}\n\n{benchmark['about']}\n\n"
    if benchmark["problem"]:
        yield f"    {benchmark['command']}\n\n**Not measured**: {benchmark['problem']}\n"
        return
    yield f"    {benchmark['command']}    # {benchmark['seconds']:.0f} s\n\n"
    result = benchmark["result"]
    if "rounds" in result:
        yield from _rounds(result)
    else:
        yield from _measurements(result)
    for note in benchmark["notes"]:
        yield f"\nSome of it was left out: {note}\n"


def _measurements(result: Mapping[str, Any]) -> Iterator[str]:
    """Return medians by launcher, and ratios, from the JSON object of measuring.report."""
    measurements = [
        Measurement(name, one["unit"], one["samples"])
        for name, one in result["measurements"].items()
    ]
    there = {name for measurement in measurements for name in measurement.samples}
    # Some benchmarks do not compare launchers.
    names = [*(name for name in LAUNCHERS if name in there), *sorted(there - LAUNCHERS.keys())]
    ratios = [
        (of, to) for of, to in (("plaunch", "bare"), ("torchrun", "plaunch")) if {of, to} <= there
    ]
    rows = []
    for measurement in measurements:
        row = [measurement.name]
        for name in names:
            is_known = name in measurement.samples
            row.append(f"{number(measurement.median(name))} {measurement.unit}" if is_known else "")
        for of, to in ratios:
            is_known = {of, to} <= measurement.samples.keys() and measurement.median(to) > 0
            row.append(f"**{measurement.ratio(of, to):.1f}**" if is_known else "")
        row.append(_range(measurement))
        rows.append(row)
    yield _table(["", *names, *(f"{of} : {to}" for of, to in ratios), "range"], rows)


def _range(measurement: Measurement) -> str:
    """Return the range of plaunch's samples, if there are any."""
    samples = measurement.samples.get("plaunch")
    return f"{number(min(samples))} to {number(max(samples))}" if samples else ""


def _rounds(result: Mapping[str, Any]) -> Iterator[str]:
    """Return the results of rendezvous.py: rounds of several sizes, and one of torch."""
    peer = result.get("peer", {})
    rounds = [("plaunch", one) for one in result["rounds"]]
    if "nodes" in peer:
        rounds.append(("torch", peer))
    yield _table(
        ["", *ROUND_COLUMNS.values()],
        ([name, *(f"{one[key]:.5g}" for key in ROUND_COLUMNS)] for name, one in rounds),
    )
    for one in result["rounds"]:
        if one["nodes"] == peer.get("nodes"):
            ratio = peer["seconds"] / one["seconds"]
            yield f"\ntorch : plaunch, {one['nodes']} nodes: **{ratio:.1f}**\n"
    if "problem" in peer:
        yield f"\ntorch's own was not measured: {peer['problem']}\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]] | Iterator[Sequence[str]]) -> str:
    """Return a Markdown table with escaped cells."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
