"""What the host of a store says about nodes that its server has refused."""

from __future__ import annotations

import os
import socket

import pytest
from plaunch_job_store import frames
from plaunch_job_store.client import StoreRefusedError
from plaunch_job_store.frames import MessageKind
from plaunch_job_store.reports import (
    INTERVAL,
    MAX_PEERS,
    ReportFilter,
    ReportPipe,
    ReportReader,
    ServerReport,
    describe_report,
)

from helpers.clock import Clock
from helpers.hostile import HOSTILE, assert_harmless
from helpers.job_store import Served
from helpers.waiting import wait_until

TOKEN = b"0123456789abcdef"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reported(clock):
    reports = []
    report = ReportFilter(reports.append, clock)
    report.reports = reports
    return report


class TestFilter:
    def test_each_peer_and_reason_is_reported_once_a_minute(self, reported, clock):
        for _ in range(3):
            reported("10.0.0.1", "no token")
            reported("10.0.0.1", "wrong token")
            reported("10.0.0.2", "no token")
        assert [report.peer[-1] + report.reason[0] for report in reported.reports] == [
            "1n",
            "1w",
            "2n",
        ]
        clock.advance(INTERVAL)
        reported("10.0.0.1", "no token")
        assert len(reported.reports) == 4

    def test_numbers_in_a_reason_do_not_make_another_one(self, reported):
        for number in range(100):
            reported("10.0.0.1", f"the node speaks versions {number} to {number}")
        assert len(reported.reports) == 1

    def test_of_very_many_peers_the_rest_is_counted(self, reported, clock):
        for number in range(MAX_PEERS + 7):
            reported(f"10.0.{number}", "no token")
        assert len(reported.reports) == MAX_PEERS
        clock.advance(INTERVAL)
        reported("10.0.0.1", "no token")
        assert reported.reports[-1] == ServerReport("10.0.0.1", "no token", missed=7)


class TestPipe:
    def test_reports_arrive_in_order(self):
        read, write = os.pipe()
        found = []
        reader = ReportReader(read, found.append)
        pipe = ReportPipe(write)
        sent = [
            ServerReport("10.0.0.1", "no\ttoken"),
            ServerReport("", "x", 3),
            ServerReport("::1", "y" * 9999),
        ]
        for report in sent:
            pipe.write(report)
        os.close(write)
        reader.join()
        assert found[:2] == [ServerReport("10.0.0.1", "no token"), sent[1]]
        assert found[2].reason.startswith("yyy")

    def test_a_host_that_does_not_read_is_not_waited_for(self):
        read, write = os.pipe()
        pipe = ReportPipe(write)
        for _ in range(1000):
            pipe.write(ServerReport("10.0.0.1", "x" * 1000))
        os.close(read)
        pipe.write(ServerReport("10.0.0.1", "no token"))
        os.close(write)


class TestMessage:
    def test_it_names_the_host_the_address_and_the_reason(self):
        report = ServerReport("10.0.0.1", "the node has no token", missed=2)
        assert describe_report(report, lambda _: "node7") == (
            "the store of this job has refused node7 (10.0.0.1): the node has no token; "
            "2 others were refused as well"
        )
        assert "refused 10.0.0.1: " in describe_report(report, lambda address: address)

    @pytest.mark.parametrize("text", HOSTILE)
    def test_names_and_reasons_are_made_safe(self, text):
        message = describe_report(ServerReport("10.0.0.1", text), lambda _: text)
        assert_harmless(message)
        assert "\n" not in message


class TestRefusals:
    @pytest.mark.parametrize(
        ("theirs", "own", "reason"),
        [
            (TOKEN, b"another token 12", "does not prove that it knows the job's token"),
            (TOKEN, None, "has no token, and this job has one"),
            (None, TOKEN, "has a token, and this job has none"),
        ],
    )
    def test_a_node_with_another_token_is_reported(self, theirs, own, reason):
        reports = []
        served = Served(theirs, report=lambda peer, text: reports.append((peer, text)))
        with pytest.raises(StoreRefusedError):
            Served.client_of(served.port, own)
        wait_until(lambda: reports, "the server has reported it")
        served.close()
        ((peer, text),) = reports
        assert peer == "127.0.0.1"
        assert reason in text

    @pytest.mark.parametrize(
        ("sent", "reason"),
        [
            (b"GET / HTTP/1.1\r\n\r\n", "a frame"),
            (
                frames.frame(MessageKind.HELLO, frames.MAGIC, frames.u16(8), frames.u16(9)),
                "the node speaks versions 8 to 9",
            ),
            (frames.frame(MessageKind.HELLO, b"plaunch stare"), "it is not a node"),
        ],
    )
    def test_other_versions_and_programs_are_reported(self, sent, reason):
        reports = []
        served = Served(TOKEN, report=lambda peer, text: reports.append(text))
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(sent)
            while sock.recv(1000):
                pass
        served.close()
        (text,) = reports
        assert reason in text

    def test_too_many_connections_are_reported(self):
        reports = []
        served = Served(report=lambda peer, text: reports.append(text), max_connections=1)
        served.client()
        with pytest.raises(StoreRefusedError, match="its limit"):
            served.direct()
        served.close()
        assert "has 1 connections, its limit" in reports[0]
