"""`RepeatedMessages` merges messages that several agents write."""

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


@pytest.fixture
def shown(messages, clock):
    """Feed lines of nodes, and return what is shown of them in the end."""

    def shown(*lines):
        found = [each for node, text in lines for each in messages.feed(node, text)]
        clock.now += 1
        return [*found, *messages.due()]

    return shown


def test_a_message_of_all_agents_is_shown_once_and_without_a_node(shown):
    """The first node that reports a failure is not the one that has failed."""
    assert shown(*((node, FAILURE) for node in "abc")) == [("", FAILURE)]


def test_a_message_of_one_agent_has_its_node_and_is_shown_each_time(shown):
    assert shown(*[("a", FAILURE)] * 3) == [("a", FAILURE)] * 3


def test_a_message_waits_for_those_of_other_nodes_for_a_moment(messages, clock):
    assert [*messages.feed("a", FAILURE)] == []
    assert [*messages.due()] == []
    clock.now += 0.5
    assert [*messages.due()] == [("a", FAILURE)]
    assert [*messages.due()] == []


def test_a_message_that_arrives_in_pieces_is_still_one(messages):
    [*messages.feed("a", FAILURE)]
    begin, end = FAILURE[:30], FAILURE[30:]
    assert [*messages.feed("b", b"epoch 1\n" + begin)] == [("b", b"epoch 1\n")]
    assert [*messages.feed("b", end)] == [("", FAILURE)]


def test_a_message_without_an_end_is_shown_at_the_end(messages):
    assert [*messages.feed("a", b"plaunch: the")] == []
    assert [*messages.due(is_last=True)] == [("a", b"plaunch: the")]


def test_a_prompt_does_not_wait(messages):
    assert [*messages.feed("a", b"(Pdb) ")] == [("a", b"(Pdb) ")]


def test_lines_behind_a_message_wait_for_it(messages):
    assert [*messages.feed("a", FAILURE + b"epoch 1\n")] == []
    assert [*messages.feed("a", b"epoch 2\n")] == []
    assert [*messages.feed("b", b"epoch 1\n")] == [("b", b"epoch 1\n")]
    assert [*messages.feed("b", FAILURE)] == [("", FAILURE), ("a", b"epoch 1\nepoch 2\n")]


def test_not_much_waits(messages):
    [*messages.feed("a", FAILURE)]
    text = b"x" * 99 + b"\n"
    found = [each for _ in range(1000) for each in messages.feed("a", text)]
    assert found[0] == ("a", FAILURE)
    assert b"".join(text for _, text in found[1:]) == text * 1000


def test_at_the_end_all_is_shown(messages):
    [*messages.feed("a", FAILURE + b"epoch 1\n")]
    assert [*messages.due(is_last=True)] == [("a", FAILURE), ("a", b"epoch 1\n")]


def test_the_next_one_may_come_from_another_node_first(shown):
    assert shown(("a", FAILURE), ("b", FAILURE)) == [("", FAILURE)]
    assert shown(("b", FAILURE), ("a", FAILURE)) == [("", FAILURE)]


def test_a_late_repetition_is_not_shown(shown):
    assert shown(("a", FAILURE)) == [("a", FAILURE)]
    assert shown(("b", FAILURE)) == []


def test_later_it_is_another_event(shown, clock):
    assert shown(("a", FAILURE)) == [("a", FAILURE)]
    clock.now += 11
    assert shown(("b", FAILURE)) == [("b", FAILURE)]


@pytest.mark.parametrize("line", [b"epoch 1\n", b"  loss 0.1\n", b"about plaunch: nothing\n"])
def test_lines_of_workers_are_all_shown(messages, line):
    """They wait for nothing."""
    assert [*messages.feed("a", line)] == [("a", line)]
    assert [*messages.feed("b", line)] == [("b", line)]


def test_further_lines_of_a_message_belong_to_it(shown):
    text = b"plaunch: workers hang\n  rank 0: all_reduce\n"
    lines = text.splitlines(keepends=True)
    assert shown(("a", text), ("b", text)) == [("", line) for line in lines]
    assert shown(("b", b"epoch 1\n" + lines[1])) == [("b", b"epoch 1\n" + lines[1])]


def test_colours_make_no_difference(shown):
    text = b"\x1b[31mplaunch: all is lost\x1b[0m\n"
    assert shown(("a", text), ("b", text)) == [("", text)]


def test_it_remembers_a_bounded_number(shown):
    for number in range(2000):
        shown(("a", b"plaunch: message %d\n" % number))
    assert shown(("b", b"plaunch: message 0\n")) == [("b", b"plaunch: message 0\n")]
    assert shown(("b", b"plaunch: message 1999\n")) == []
