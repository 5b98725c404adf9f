"""Too many connections to a hosted store, and too few descriptors for all."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
from plaunch_rendezvous_c10d.connection_limiter import ConnectionLimiter
from plaunch_rendezvous_c10d.guests import find_guests

from helpers.clock import Clock
from helpers.programs import running_python
from helpers.waiting import wait_until

# Opens as many connections as each line requests, and prints for all of them, the oldest first,
# whether they are open; 0 opens none.
CROWD = """
import json, select, socket, sys
port, socks = int(sys.argv[1]), []
for line in sys.stdin:
    socks += [socket.create_connection(("127.0.0.1", port)) for _ in range(int(line))]
    for sock in socks[-int(line):] if int(line) else ():
        sock.settimeout(30)
    ended = select.select(socks, [], [], 0.3 if int(line) == 0 else 0)[0]
    print(json.dumps([sock not in ended for sock in socks]), flush=True)
"""


@pytest.fixture
def port(prepare):
    """The port of a store of this process, which has no limiter if there is one node."""
    with prepare("127.0.0.1:0", store="torch") as backend:
        backend.connect().set("key", b"x")
        yield int(backend.endpoint.rpartition(":")[2])


@pytest.fixture
def crowd(port):
    """Let another process open connections; return which of all of them are still open."""
    with running_python("-c", CROWD, port) as process:

        def crowd(count):
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield crowd


@pytest.fixture
def keep(port):
    """Make a limiter that does nothing by itself, with a limit of additional descriptors."""
    bell, other = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, bell)
        stack.callback(os.close, other)

        def keep(more, hard=None, **options):
            limits = [len(os.listdir("/proc/self/fd")) + more]
            hard = limits[0] if hard is None else limits[0] + hard

            def raise_limit():
                limits[0] = max(limits[0], hard)
                return limits[0]

            limiter = ConnectionLimiter(
                port,
                bell,
                limit=lambda: limits[0],
                raise_limit=raise_limit,
                check_interval=1000.0,
                scan_interval=0.0,
                **options,
            )
            stack.callback(limiter.close)
            return limiter

        yield keep


def served(port, count):
    """Whether torch has accepted this many connections of others."""
    wait_until(lambda: len(find_guests(port)) >= count, f"{count} connections")


def test_connections_below_the_limit_stay(keep, crowd, port):
    limiter = keep(200)
    crowd(20)
    served(port, 20)
    assert limiter.check() == 0
    assert all(crowd(0))


def test_the_latest_connections_are_closed(keep, crowd, port, caplog):
    limiter = keep(60)
    crowd(10)
    served(port, 10)
    assert limiter.check() == 0
    crowd(45)
    served(port, 55)
    ended = limiter.check()
    assert ended >= 20
    left = crowd(0)
    assert left[:10] == [True] * 10
    assert left.count(False) == ended
    assert "ulimit -Hn" in caplog.text
    # torch closes them when it notices that they have ended.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= limiter.mark() + 1, "they are closed")


def test_the_warning_is_logged_once_a_minute(keep, crowd, port, caplog):
    clock = Clock()
    limiter = keep(40, clock=clock)
    said = []
    for seconds in (0.0, 30.0, 31.0):
        clock.now += seconds
        caplog.clear()
        crowd(60)
        served(port, 30)
        assert limiter.check()
        said.append(len(caplog.records))
    assert said == [1, 0, 1]


def test_the_limit_is_raised_before_clients_connect(keep, crowd, port):
    limiter = keep(40, hard=400)
    crowd(60)
    served(port, 60)
    assert limiter.check() == 0
    assert all(crowd(0))


def test_a_limit_that_is_too_low_for_the_job_is_warned_about_at_once(keep, caplog):
    keep(100, expected=40)
    assert caplog.text == ""
    keep(100, hard=1000, expected=400)
    assert caplog.text == ""
    keep(100, hard=200, expected=400)
    assert "ulimit -Hn" in caplog.text
    assert "rejected" in caplog.text
