"""What is taken out of a bundle."""

from __future__ import annotations

import json

import pytest
from plaunch_failure_bundle.redaction import Redaction, is_secret


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HF_TOKEN", True),
        ("PLAUNCH_ETCD_PASSWORD", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("--api-key", True),
        ("--apikey", True),
        ("otel.headers.authorization", True),
        ("--tokenizer", False),
        ("--max-tokens", False),
        ("token_file", False),
        ("MONKEY", False),
    ],
)
def test_names_of_secrets(name, expected):
    assert is_secret(name) is expected


@pytest.mark.parametrize(
    ("environ", "words", "settings"),
    [
        ({"HF_TOKEN": "s3cret/it is"}, [], {}),
        ({}, ["train.py", "--hf-token", "s3cret/it is"], {}),
        ({}, ["train.py", "--hf-token=s3cret/it is"], {}),
        ({}, ["--rdzv-conf=timeout=3,password=s3cret/it is,x=1", "train.py"], {}),
        ({}, [], {"rdzv_configs": {"password": "s3cret/it is"}}),
        ({}, [], {"options": {"event_conf": ["a.key=s3cret/it is"]}}),
    ],
)
def test_values_are_found_where_they_are_given(environ, words, settings):
    redact = Redaction.of_launch(environ, words, settings)
    assert redact(b"it is s3cret/it is!") == b"it is <withheld>!"


def test_values_are_found_as_json_python_and_a_shell_write_them():
    value = 'it\'s "né" \\ or\tnot'
    redact = Redaction([value])
    for text in (value, json.dumps(value), repr(value), f"'{value}'"):
        assert b"<withheld>" in redact(text.encode()), text
        assert b"or" not in redact(text.encode()), text


def test_a_secret_that_is_a_part_of_another_one():
    assert Redaction(["secret", "secret-two"])(b"secret-two secret") == b"<withheld> <withheld>"


def test_values_that_would_spoil_everything_stay():
    redact = Redaction.of_launch({"KEY": "1", "A_TOKEN": ""}, [], {})
    assert redact(b"step 1 of 10") == b"step 1 of 10"


def test_passwords_in_addresses():
    text = b"tcp://10.0.0.1:29500 https://me:pass@host/x a@b:c@d"
    assert Redaction([])(text) == b"tcp://10.0.0.1:29500 https://<withheld>@host/x a@b:c@d"
