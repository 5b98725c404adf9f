"""The parameters of a backend."""

from __future__ import annotations

import pytest
from plaunch.errors import PlaunchError, UsageError
from plaunch.rendezvous import RendezvousInfo, RendezvousParameters, RendezvousStoreInfo


def params(**config):
    return RendezvousParameters("c10d", "node0:1", "job", 1, 2, **config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": ""}, "backend has no name"),
        ({"run_id": ""}, "run id is empty"),
        ({"min_nodes": 0}, "minimum number of nodes is 0"),
        ({"max_nodes": 1, "min_nodes": 2}, r"maximum number of nodes \(1\) is below"),
    ],
)
def test_bad_parameters_are_refused(changes, message):
    good = {"backend": "b", "endpoint": "", "run_id": "r", "min_nodes": 1, "max_nodes": 2}
    with pytest.raises(UsageError, match=message) as caught:
        RendezvousParameters(**{**good, **changes})
    assert isinstance(caught.value, ValueError)  # as torchrun raises
    assert isinstance(caught.value, PlaunchError)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", True),
        ("TRUE", True),
        ("t", True),
        ("yes", True),
        ("Y", True),
        (True, True),
        (1, True),
        ("0", False),
        ("False", False),
        ("f", False),
        ("no", False),
        ("n", False),
        (False, False),
        (0, False),
    ],
)
def test_booleans(value, expected):
    assert params(flag=value).get_as_bool("flag") is expected


@pytest.mark.parametrize(("value", "expected"), [("5", 5), (5, 5), ("-1", -1)])
def test_integers(value, expected):
    assert params(count=value).get_as_int("count") == expected


@pytest.mark.parametrize(("value", "expected"), [("0.5", 0.5), (2, 2.0)])
def test_numbers(value, expected):
    assert params(period=value).get_as_float("period") == expected


def test_missing_options_have_the_callers_default():
    empty = params()
    assert empty.get("x") is None
    assert empty.get("x", 1) == 1
    assert empty.get_as_bool("x", True) is True
    assert empty.get_as_int("x", 7) == 7
    assert empty.get_as_float("x", 0.5) == 0.5


@pytest.mark.parametrize(
    ("getter", "value", "word"),
    [
        ("get_as_bool", "maybe", "boolean"),
        ("get_as_int", "1.5", "integer"),
        ("get_as_float", "soon", "number"),
    ],
)
def test_a_bad_value_is_named_with_its_option_and_backend(getter, value, word):
    with pytest.raises(UsageError, match=rf"'x' of rendezvous backend 'c10d' is '{value}'.*{word}"):
        getattr(params(x=value), getter)("x")


def test_unknown_options_are_ignored_with_a_warning(caplog):
    """They stand in public command lines for torchrun, which ignores them."""
    given = params(rdzv_backend="c10d", rdzv_endpoint="node0:29500", use_libuv="0", is_host="1")
    given.refuse_unknown(frozenset({"join_timeout", "is_host", "store_type"}))
    assert [record.getMessage() for record in caplog.records] == [
        f"rendezvous backend 'c10d' has no option {key!r} (--rdzv-conf); it is ignored"
        for key in ("rdzv_backend", "rdzv_endpoint", "use_libuv")
    ]


def test_misspelt_options_are_refused_with_the_closest_match():
    known = frozenset({"join_timeout", "is_host"})
    params(join_timeout="5").refuse_unknown(known)
    with pytest.raises(UsageError, match=r"no option 'join_timeot'.*did you mean 'join_timeout'"):
        params(join_timeot="5").refuse_unknown(known)


def test_options_of_other_backends_get_a_warning(caplog):
    params(timeout="5").refuse_unknown(frozenset(), frozenset({"timeout"}))
    assert "does not need option 'timeout'" in caplog.text


def test_a_key_of_another_backend_of_torchrun_is_a_warning(caplog):
    given = params(is_host=True, store_type="file", protocol="https", rank=1, mine=2)
    given.refuse_unknown(frozenset({"mine"}))
    warned = [record.getMessage() for record in caplog.records]
    assert warned == [
        f"rendezvous backend 'c10d' does not need option {key!r}; it is ignored"
        for key in ("is_host", "protocol", "rank", "store_type")
    ]


def test_the_fields_of_rendezvous_info():
    info = RendezvousInfo(None, 1, 3, RendezvousStoreInfo("node0", 29500))
    assert (info.store, info.rank, info.world_size) == (None, 1, 3)
    assert info.bootstrap_store_info.master_port == 29500
    assert "node0" in repr(info)
