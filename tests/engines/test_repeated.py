"""`RepeatedMessages` finds messages that several agents write."""

import pytest
from plaunch_engines.repeated import RepeatedMessages

from helpers.clock import Clock

FAILURE = b"plaunch: rank 1 on host failed: exit code 3; restart 1 of 3\n"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def messages(clock):
    return RepeatedMessages(clock)


def test_a_message_of_all_agents_is_shown_once(messages):
    assert [messages.has(node, FAILURE) for node in ("a", "b", "c")] == [False, True, True]


def test_a_message_of_one_agent_is_shown_each_time(messages):
    assert [messages.has("a", FAILURE) for _ in range(3)] == [False, False, False]


def test_the_next_one_may_come_from_another_node_first(messages):
    for node in ("a", "b"):
        messages.has(node, FAILURE)
    assert [messages.has(node, FAILURE) for node in ("b", "a")] == [False, True]


def test_later_it_is_another_event(messages, clock):
    messages.has("a", FAILURE)
    clock.now += 11
    assert not messages.has("b", FAILURE)


def test_lines_of_workers_are_all_shown(messages):
    assert not any(messages.has(node, b"epoch 1\n") for node in ("a", "b"))
    assert not any(messages.has(node, b"  loss 0.1\n") for node in ("a", "b"))


def test_further_lines_of_a_message_belong_to_it(messages):
    lines = [b"plaunch: workers hang\n", b"  rank 0: all_reduce\n"]
    assert [messages.has("a", line) for line in lines] == [False, False]
    assert [messages.has("b", line) for line in lines] == [True, True]
    assert not messages.has("b", b"epoch 1\n")
    assert not messages.has("b", b"  rank 0: all_reduce\n")


def test_the_account_of_one_node_is_enough(messages):
    assert not messages.has("a", b"plaunch: this launch took 3.4 s: 2.5 s training\n")
    assert messages.has("b", b"plaunch: this launch took 3.3 s: 2.7 s training\n")


def test_colours_make_no_difference(messages):
    assert not messages.has("a", b"\x1b[31mplaunch: all is lost\x1b[0m\n")
    assert messages.has("b", b"\x1b[31mplaunch: all is lost\x1b[0m\n")


def test_it_remembers_a_bounded_number(messages):
    for number in range(2000):
        messages.has("a", b"plaunch: message %d\n" % number)
    assert not messages.has("b", b"plaunch: message 0\n")
    assert messages.has("b", b"plaunch: message 1999\n")
