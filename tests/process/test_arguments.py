"""What callers may pass for each local rank."""

from __future__ import annotations

from pathlib import PurePosixPath as PurePath

import pytest
from plaunch.errors import PlaunchError, RankMappingError, UsageError
from plaunch.process.arguments import validate_ranks, worker_args, worker_envs


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({0: "hello", 1: "world"}, {0: ("hello",), 1: ("world",)}),
        ({0: (1, 2, 3)}, {0: (1, 2, 3)}),
        ({0: [1, [2]]}, {0: (1, [2])}),
        ({0: ()}, {0: ()}),
        ({0: b"raw"}, {0: (b"raw",)}),
        ({1: "b", 0: "a"}, {0: ("a",), 1: ("b",)}),
    ],
)
def test_arguments_become_tuples(given, expected):
    assert worker_args(given) == expected
    assert list(worker_args(given)) == sorted(given)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 2], "what must name the local ranks 0 to 1 and no others; it lacks 1 and has 2"),
        ([1, 2], "what must name the local ranks 0 to 1 and no others; it lacks 0 and has 2"),
        ([0], "what must name the local ranks 0 to 1 and no others; it lacks 1"),
        ([0, 1, 7, -1], "what must name the local ranks 0 to 1 and no others; it has -1, 7"),
        ([0, "1"], "what must name the local ranks 0 to 1 and no others; it lacks 1 and has '1'"),
    ],
)
def test_a_wrong_set_of_ranks_is_spelt_out(ranks, message):
    with pytest.raises(RankMappingError) as error:
        validate_ranks("what", dict.fromkeys(ranks), 2)
    assert str(error.value) == message


def test_a_rank_mapping_error_is_torchruns_and_ours():
    with pytest.raises(RuntimeError) as error:
        validate_ranks("args", {}, 1)
    assert isinstance(error.value, PlaunchError)
    assert isinstance(error.value, UsageError)


def test_ranks_may_come_in_any_order():
    validate_ranks("args", {2: "", 0: "", 1: ""}, 3)


def test_no_worker_at_all_is_refused():
    with pytest.raises(RankMappingError, match="no worker to start"):
        worker_args({})


@pytest.mark.parametrize("given", [[("a",), ("b",)], "ab", None])
def test_arguments_that_are_no_mapping_are_refused(given):
    with pytest.raises(RankMappingError, match=r"args is .* must map each local rank"):
        worker_args(given)


def test_a_single_value_must_be_written_as_a_tuple():
    with pytest.raises(UsageError, match=r"args\[0\] is 5; write .* as a tuple, \(5,\)"):
        worker_args({0: 5})


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (True, "True"), ("a b", "a b"), (b"x", "x"), (PurePath("/a"), "/a")],
)
def test_variables_become_strings(value, text):
    given = {0: {"NAME": value}}
    assert worker_envs(given, 1) == {0: {"NAME": text}}
    assert given == {0: {"NAME": value}}


def test_variables_are_a_copy():
    given = {0: {"A": "1"}}
    worker_envs(given, 1)[0]["B"] = "2"
    assert given == {0: {"A": "1"}}


def test_missing_variables_are_no_variables():
    assert worker_envs(None, 2) == {0: {}, 1: {}}


def test_variables_must_name_every_rank_once_they_are_given():
    with pytest.raises(RankMappingError, match=r"envs .* lacks 1"):
        worker_envs({0: {}}, 2)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"A": None}, r"envs\[0\]\['A'\] is None; leave the variable out or give a value"),
        ({"A=B": "1"}, r"envs\[0\] has the name 'A=B'"),
        ({"": "1"}, r"envs\[0\] has the name ''"),
        ({1: "1"}, r"envs\[0\] has the name 1"),
        ({"A": "x\0y"}, r"envs\[0\]\['A'\] has a NUL character"),
    ],
)
def test_what_no_environment_can_hold_is_refused(env, message):
    with pytest.raises(UsageError, match=message):
        worker_envs({0: env}, 1)
