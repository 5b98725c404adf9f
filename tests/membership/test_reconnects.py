"""Connections that are opened again and again are one line at the beginning and one at the end."""

from __future__ import annotations

import logging

import pytest
from plaunch_membership import ReconnectLog
from plaunch_membership.outage import OutageReporter

from helpers.clock import Clock


@pytest.fixture
def said(caplog):
    """Return the messages so far, and forget them."""
    caplog.set_level(logging.INFO, "plaunch")

    def take():
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return take


def test_fifty_connections_of_an_outage_are_two_lines(said):
    clock = Clock()
    log = ReconnectLog("etcd", clock, calm=30.0)
    for number in range(50):
        log.note(f"continuing with etcd at node{number % 3}")
        clock.now += 4.0
        log.note_answer()
    assert said() == ["continuing with etcd at node0"]
    clock.now += 30.0
    log.note_answer()
    log.note_answer()
    assert said() == ["etcd answers steadily again: it was connected 50 times within 3 m 16 s"]
    log.note("continuing with etcd at node1")
    assert said() == ["continuing with etcd at node1"]


def test_a_single_connection_is_one_line(said):
    clock = Clock()
    log = ReconnectLog("etcd", clock)
    log.note_answer()
    log.note("continuing with etcd at a")
    clock.now += 60.0
    log.note_answer()
    assert said() == ["continuing with etcd at a"]
    log.note("continuing with etcd at b")
    assert said() == ["continuing with etcd at b"]


def test_without_an_answer_a_later_connection_is_another_outage(said):
    clock = Clock()
    log = ReconnectLog("etcd", clock)
    for _ in range(2):
        log.note("continuing")
        log.note("continuing")
        clock.now += 60.0
    assert said() == [
        "continuing",
        "etcd answers steadily again: it was connected 2 times within 1 s",
        "continuing",
    ]


def test_stuck_connections_to_any_store(said):
    clock = Clock()
    outage = OutageReporter("node0:29400", clock)
    for _ in range(5):
        outage.reconnecting()
        clock.now += 7.0
    clock.now += 30.0
    outage.recovered()
    assert said() == [
        "the store at node0:29400 does not answer; connecting again",
        "the store at node0:29400 answers steadily again: it was connected 5 times within 28 s",
    ]
