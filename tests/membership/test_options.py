"""Where the job's token is read from, and which values are invalid."""

from __future__ import annotations

import copy
import logging
import os

import pytest
from plaunch.errors import UsageError
from plaunch.process.marks import is_secret
from plaunch.rendezvous import TOKEN_OPTION, TOKEN_VARIABLE, RendezvousParameters
from plaunch_membership.options import read_token, warn_of_short_token

SECRET = "correct horse battery staple"


def params(**config):
    return RendezvousParameters("c10d", "node0:1", "job", 1, 2, **config)


@pytest.fixture
def token_file(tmp_path):
    def token_file(content=SECRET, mode=0o600):
        path = tmp_path / "token"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return str(path)

    return token_file


def test_no_token():
    assert read_token(params(), {}) is None
    assert read_token(params(), {TOKEN_VARIABLE: ""}) is None  # the same as unset


@pytest.mark.parametrize("content", [SECRET, f"{SECRET}\n", f"\n {SECRET}\r\n"])
def test_a_file(token_file, content, caplog):
    assert read_token(params(token_file=token_file(content)), {}) == SECRET.encode()
    assert not caplog.records


def test_a_variable():
    assert read_token(params(), {TOKEN_VARIABLE: f" {SECRET}\n"}) == SECRET.encode()
    assert read_token(params(), {TOKEN_VARIABLE: "\udcff" * 16}) == b"\xff" * 16


def test_the_file_has_priority_over_the_variable(token_file, caplog):
    caplog.set_level(logging.DEBUG, "plaunch")
    environ = {TOKEN_VARIABLE: "another secret of sixteen bytes"}
    assert read_token(params(token_file=token_file()), environ) == SECRET.encode()
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert f"{TOKEN_VARIABLE} is ignored" in record.getMessage()
    assert "secret" not in record.getMessage()


@pytest.mark.parametrize(("mode", "is_open"), [(0o640, False), (0o604, True), (0o602, True)])
def test_a_file_open_to_all_users_gets_a_warning(token_file, caplog, mode, is_open):
    path = token_file(mode=mode)
    assert read_token(params(token_file=path), {}) == SECRET.encode()
    messages = [record.getMessage() for record in caplog.records]
    assert [path in message and f"{mode:o}" in message for message in messages] == [True] * is_open


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("s3cr&", "has 5 bytes"),
        ("x" * 15, "has 15 bytes"),
        ("x" * 4097, "has more than 4096 bytes"),
        (" " * 5000, "has more than 4096 bytes"),
    ],
)
def test_invalid_tokens(token_file, content, problem):
    path = token_file(content)
    with pytest.raises(UsageError, match=problem) as caught:
        read_token(params(token_file=path), {})
    assert path in str(caught.value)
    assert "openssl rand -hex 32" in str(caught.value)
    assert "s3cr&" not in str(caught.value)


def test_a_variable_that_is_too_short():
    with pytest.raises(UsageError, match=f"{TOKEN_VARIABLE} has 5 bytes") as caught:
        read_token(params(), {TOKEN_VARIABLE: "short"})
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "cause"),
    [("missing", "No such file"), (".", "Is a directory"), ("", "No such file")],
)
def test_an_unreadable_file(tmp_path, monkeypatch, path, cause):
    monkeypatch.chdir(tmp_path)
    # The variable is not used instead: one node would sign with another secret than the others.
    with pytest.raises(UsageError, match=f"{path!r}.* cannot be read: {cause}"):
        read_token(params(token_file=path), {TOKEN_VARIABLE: SECRET})


def test_an_endless_file_is_not_read_completely():
    with pytest.raises(UsageError, match="more than 4096 bytes"):
        read_token(params(token_file="/dev/urandom"), {})


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_without_permission(token_file):
    with pytest.raises(UsageError, match="Permission denied"):
        read_token(params(token_file=token_file(mode=0)), {})


def test_reading_the_option_is_recorded():
    asked = params()
    read_token(copy.copy(asked), {})
    assert TOKEN_OPTION in asked.secrets_read


def test_workers_do_not_inherit_the_variable():
    assert is_secret(TOKEN_VARIABLE)


@pytest.mark.parametrize(
    ("token", "is_short"), [(None, False), (b"x" * 31, True), (b"x" * 32, False)]
)
def test_a_token_that_can_be_guessed_gets_a_warning(caplog, token, is_short):
    warn_of_short_token(token)
    assert ("has 31 characters" in caplog.text) == is_short
    assert "xxx" not in caplog.text
