"""The page in a real browser: its facts, its filter, and its security."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from importlib.util import find_spec

import pytest

from helpers.waiting import wait_until

pytest.importorskip("bokeh")

from plaunch_report.cli import main

TIMEOUT = 60.0  # seconds

WORKER = textwrap.dedent(
    """
    import os, pathlib, sys, time
    rank, round_ = os.environ["RANK"], os.environ["PLAUNCH_ROUND"]
    pathlib.Path(f"began.{round_}.{rank}").touch()
    while not os.path.exists("exit"):
        if os.path.exists(f"fail.{round_}.{rank}"):
            sys.exit("loss is <b>nan</b>; </script><script>document.title='owned'</script>")
        time.sleep(0.02)
    """
)


class Dom(HTMLParser):
    """The document of a page in the browser: texts by id, rows of tables, a count of elements."""

    VOID = ("meta", "input", "br", "link", "img", "hr")

    def __init__(self, html):
        super().__init__()
        self.root, self.texts, self.tables = {}, {}, {}
        self.count = 0
        self._open, self._rows = [], None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.count += 1
        if tag == "html":
            self.root = attrs
        if tag == "table":
            self._rows = self.tables.setdefault(attrs.get("id"), [])
        if tag == "tr" and self._rows is not None:
            self._rows.append([])
        if tag in ("td", "th") and self._rows:
            self._rows[-1].append("")
        if tag not in self.VOID:
            self._open.append((tag, attrs.get("id")))

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, id_ in self._open:
            if id_:
                self.texts[id_] = self.texts.get(id_, "") + data
        if any(tag in ("td", "th") for tag, _ in self._open):
            self._rows[-1][-1] += data

    def rows(self, table):
        """The rows of a table, as dictionaries by its headings."""
        headings, *rows = self.tables[table]
        return [dict(zip(headings, row, strict=False)) for row in rows]


@pytest.fixture
def load_page(browser, tmp_path):
    """Open a page in the browser and return its document."""

    def open_(path, link="", width=1300):
        done = subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--window-size={width},1000",
                "--virtual-time-budget=20000",
                "--dump-dom",
                f"file://{path}{link}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=True,
        )
        dom = Dom(done.stdout.decode())
        assert "data-error" not in dom.root, dom.root["data-error"]
        assert "data-blocked" not in dom.root, dom.root["data-blocked"]
        assert dom.root.get("data-drawn") == "1", "the charts were not drawn"
        return dom

    return open_


def report(runs, *argv):
    path = runs.folder.parent / "report.html"
    assert main([str(runs.folder), f"--output={path}", *argv]) == 0
    return path


EVENTS = 82  # of `Runs.elastic`


@pytest.mark.slow
def test_the_facts_of_a_run(runs, load_page):
    runs.elastic()
    dom = load_page(report(runs))
    assert dom.texts["run-id"] == "job"
    assert (dom.texts["outcome"], dom.texts["exit-code"]) == ("succeeded", "0")
    assert (dom.texts["node-count"], dom.texts["failure-count"]) == ("3", "1")
    assert dom.texts["world-sizes"] == "4, 6"
    assert "b by +100.0 s" in dom.texts["notes"]
    assert "first-cause" not in dom.texts
    assert "rank 3 on b (pid 10003): exit code 1, at 20.00 s, round 0" in dom.texts["failures"]
    assert "ValueError: bad batch" in dom.texts["failures"]
    assert [row["why another round followed"] for row in dom.rows("rounds")] == [
        "failure: rank 3 failed",
        "membership: node c arrived",
        "",
    ]
    nodes = dom.rows("nodes")
    assert [row["node"] for row in nodes] == ["a", "b", "c", "all nodes together"]
    assert [row["lost to restarts"] for row in nodes[:3]] == ["7 s", "7 s", "0 s"]
    restarts = dom.rows("restarts")
    assert [(row["round"], row["node"], row["because of"]) for row in restarts] == [
        ("1", "a", "failure"),
        ("1", "b", "failure"),
        ("2", "a", "membership"),
        ("2", "b", "membership"),
    ]
    words = ("total", "noticing", "stopping", "waiting", "starting")
    assert [restarts[0][word] for word in words] == ["4.5 s", "0.5 s", "2 s", "1 s", "1 s"]
    assert len(dom.rows("events")) == EVENTS


# Words that are on two lines, although they have nowhere to break.
BROKEN = r"""
addEventListener("load", () => {
  const broken = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode());) {
    if (node.parentElement.closest("script, style, #charts")) continue;
    for (const word of node.data.matchAll(/[\w.]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
      if (lines.size > 1) broken.push(word[0]);
    }
  }
  document.documentElement.dataset.broken = broken.join(" ");
});
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1300, 1000, 800])
def test_no_word_is_broken(runs, load_page, width):
    runs.elastic()
    path = report(runs)
    page = path.read_text()
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", page).group(1)
    path.write_text(page.replace("</body>", f'<script nonce="{nonce}">{BROKEN}</script></body>'))
    assert load_page(path, width=width).root["data-broken"] == ""


def test_the_index_and_the_ranks_of_a_node(runs):
    runs.elastic()
    nodes = Dom(report(runs).read_text()).rows("nodes")
    found = [(row["node"], row["index"], row["ranks"]) for row in nodes[:3]]
    assert found == [("a", "0", "0-1"), ("b", "1", "2-3"), ("c", "2", "4-5")]


def test_of_many_restarts_the_longest_are_shown(runs):
    agent = runs.agent("a").start(0).join(1, 2, 3, round=0, world=2, nodes=1, rank=0)
    for number in range(1, 251):
        agent.common["round"] = number
        agent.restart(10 * number, 0.0, float(number), 0.0, 0.0)
    agent.finish(3000, "succeeded", 0).write()
    text = report(runs).read_text()
    rows = Dom(text).rows("restarts")
    assert [row["round"] for row in rows] == [str(number) for number in range(51, 251)]
    assert "And 50 that took less time" in text


@pytest.mark.slow
def test_a_link_filters_the_events(runs, load_page):
    runs.elastic()
    dom = load_page(report(runs), "#filter=MAX_restarts+node%20c+member")
    rows = dom.rows("events")
    assert [(row["event"], row["node"]) for row in rows] == [("restart", "a"), ("restart", "b")]
    assert dom.texts["shown"] == f"2 of {EVENTS} events"


HOSTILE = (
    "</script><script>document.documentElement.dataset.error='ran'</script>"
    "<img src=x onerror=\"document.documentElement.dataset.error='ran'\">"
    "<!--<script>{{ 7 * 7 }} $$x^2$$ &amp; \x00 \x1b[31m \ud800 \u2028 ]]> '\"`"
)


@pytest.mark.slow
def test_output_of_workers_is_escaped(runs, load_page):
    """In every text of every event, the names of hosts and of the run among them."""
    agent = runs.agent("a", run_id=HOSTILE)
    agent.common["host"] = HOSTILE
    agent.start(0, entry_point=HOSTILE, backend=HOSTILE, plaunch=HOSTILE, endpoint=HOSTILE)
    agent.join(1, 2, 3, round=0, world=2, nodes=1, rank=0, why=(HOSTILE, HOSTILE))
    agent.exit(5, 0, 1, signal=HOSTILE)
    texts = ("failed_host", "signal_name", "message", "error_file", "last_lines")
    agent.fail(5, 0, 1, **dict.fromkeys(texts, HOSTILE))
    agent.tell(5, "membership.changed", kind=HOSTILE, node=HOSTILE, reason=HOSTILE)
    agent.tell(5, "signal.received", signal_name=HOSTILE, action=HOSTILE, signum=1)
    agent.tell(5, "stop.step", step="killed", stop_ranks=HOSTILE, seconds=1.0)
    agent.tell(5, HOSTILE)
    agent.finish(6, "failed", 1, HOSTILE).write()
    path = report(runs)
    dom = load_page(path)
    for place in ("run-id", "reason", "first-cause", "failures"):
        assert "onerror=" in dom.texts[place]
        assert "{{ 7 * 7 }}" in dom.texts[place]
    assert "<img" not in path.read_text()


def test_a_page_is_self_contained(runs):
    runs.elastic()
    html = report(runs).read_text()
    assert not re.search(r"<(link|iframe|object|embed|base)\b", html)
    assert not re.search(r"<[^>]+\s(src|href)\s*=", html.split("<script", 1)[0])
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    nonces = re.findall(r'<script nonce="([^"]+)"', html)
    assert len(set(nonces)) == 1
    assert f"script-src 'nonce-{nonces[0]}'" in policy
    # Nobody who writes a log line knows the number of a page to come.
    assert nonces[0] not in report(runs).read_text()


@pytest.mark.slow
def test_a_thousand_workers(runs, load_page):
    runs.large()
    path = report(runs)
    assert path.stat().st_size < 5_000_000
    dom = load_page(path)
    assert dom.count < 6000
    assert dom.texts["shown"].endswith("events, 300 shown")
    assert dom.texts["failure-count"] == "3"


@pytest.mark.slow
def test_a_thousand_nodes_that_all_fail(runs, load_page):
    """Neither the table of nodes nor the failures grow without bound."""
    for rank in range(1000):
        agent = runs.agent(f"node-{rank}", rank=rank).start(0, 1)
        agent.join(1, 2, 3, round=0, world=1000, nodes=1000, rank=rank)
        agent.exit(4, 0, 1)
        agent.fail(4, rank, 10_000 + rank, last_lines="line\n" * 40, is_first=rank == 5)
        agent.finish(5, "failed" if rank != 999 else "signalled", 1).write()
    path = report(runs)
    assert path.stat().st_size < 6_000_000
    dom = load_page(path)
    assert dom.count < 8000
    assert "And 980 more" in dom.texts["failures"]
    assert "Rank 5 on node-5" in dom.texts["first-cause"]
    nodes = dom.rows("nodes")
    assert len(nodes) == 201
    assert nodes[0]["node"] == "node-999"  # the one that ended differently


class Job:
    """Agents of one job on this machine, whose workers are controlled by files."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "train.py").write_text(WORKER)
        self.agents = []

    def start(self):
        argv = ["--nnodes=2:3", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-backend=c10d"]
        argv += [f"--rdzv-endpoint={self.folder / 'store'}", "--rdzv-id=real", "--log-dir=logs"]
        argv += ["--rdzv-conf=store_type=file,last_call_timeout=1", "--event-log-handler=jsonl"]
        self.agents.append(
            subprocess.Popen(
                [sys.executable, "-m", "plaunch", *argv, "train.py"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def until_round(self, number, workers):
        wait_until(
            lambda: len(list(self.folder.glob(f"began.{number}.*"))) >= workers,
            f"the begin of round {number}",
        )

    def tell(self, name):
        (self.folder / name).touch()

    def end(self):
        return [agent.communicate(timeout=TIMEOUT)[1] for agent in self.agents]


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job(folder)
    yield job
    for agent in job.agents:
        if agent.poll() is None:
            agent.kill()
            agent.communicate()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="the nodes meet over the backend c10d")
def test_a_real_run_of_three_agents_with_a_failure_and_an_arrival(job, load_page):
    job.start()
    job.start()
    job.until_round(0, 4)
    job.tell("fail.0.3")
    job.until_round(1, 4)
    job.start()
    job.until_round(2, 6)
    job.tell("exit")
    said = job.end()
    assert [agent.returncode for agent in job.agents] == [0, 0, 0], said

    path = job.folder / "report.html"
    assert main([str(job.folder / "logs"), f"--output={path}"]) == 0
    dom = load_page(path)
    assert (dom.texts["run-id"], dom.texts["outcome"]) == ("real", "succeeded")
    assert (dom.texts["node-count"], dom.texts["failure-count"]) == ("3", "1")
    assert dom.texts["world-sizes"] == "4, 6"
    assert re.search(r"rank 3 on .*: exit code 1, .* round 0", dom.texts["failures"])
    assert "loss is <b>nan</b>; </script><script>" in dom.texts["failures"]
    rounds = dom.rows("rounds")
    assert [row["workers"] for row in rounds] == ["4", "4", "6"]
    assert [row["attempt"] for row in rounds] == ["0", "1", "1"]
    causes = [row["why another round followed"].split(":")[0] for row in rounds]
    assert causes == ["failure", "membership", ""]
    # Two nodes start again after the failure, and both once more for the third one.
    restarts = [(row["round"], row["because of"]) for row in dom.rows("restarts")]
    assert restarts == [("1", "failure")] * 2 + [("2", "membership")] * 2
    nodes = dom.rows("nodes")[:3]
    pids = {str(agent.pid) for agent in job.agents}
    assert {row["pid"] for row in nodes} == pids
    late = str(job.agents[2].pid)
    for row in nodes:
        assert (row["outcome"], row["exit code"]) == ("succeeded", "0")
        assert (row["lost to restarts"] == "0 s") == (row["pid"] == late)
