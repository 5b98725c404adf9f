"""`passed_environment` returns the variables that agents get."""

import pytest
from plaunch.errors import UsageError
from plaunch_engines.variables import TOKEN_VARIABLE, passed_environment

ENVIRON = {"HOME": "/root", "NCCL_DEBUG": "INFO", "WANDB_KEY": "k", "WANDB_MODE": "m", "LANG": "C"}


def passed(*texts, **more):
    return passed_environment(ENVIRON, texts, has_token=False, **more)


def test_usual_variables_are_passed():
    assert passed() == {"NCCL_DEBUG": "INFO"}
    assert passed(usual=["LANG"]) == {"LANG": "C"}


def test_a_new_token_unless_there_is_one():
    assert len(passed_environment({}, ())[TOKEN_VARIABLE]) == 64
    given = {TOKEN_VARIABLE: "given"}
    assert passed_environment(given, ()) == given


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("HOME", {"HOME": "/root"}),
        ("HOME,LANG", {"HOME": "/root", "LANG": "C"}),
        ("WANDB_*,", {"WANDB_KEY": "k", "WANDB_MODE": "m"}),
        ("A=b", {"A": "b"}),
        ("A=", {"A": ""}),
        ("A=b=c", {"A": "b=c"}),
        ("A=b,c", {"A": "b,c"}),
        ("LANG,A=b,HOME,C=d", {"LANG": "C", "A": "b,HOME,C=d"}),
        ("HOME=/home", {"HOME": "/home"}),
        ("NCCL_DEBUG=WARN", {"NCCL_DEBUG": "WARN"}),
    ],
)
def test_names_patterns_and_values(text, more):
    assert passed(text) == {"NCCL_DEBUG": "INFO", **more}


def test_the_last_one_counts():
    assert passed("A=1", "A=2", "LANG=x", "LANG") == {"NCCL_DEBUG": "INFO", "A": "2", "LANG": "C"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NOSUCH", "--pass-env=NOSUCH: NOSUCH is not set here; set it, write --pass-env=NOSUCH="),
        ("HOME,NOSUCH", "NOSUCH is not set here"),
        ("ACME_*", "no variable that can be passed begins with ACME_"),
        ("PYTHONHOME", "PYTHONHOME cannot be passed"),
        ("PYTHONHOME=/x", "PYTHONHOME cannot be passed"),
        ("OWN=1", "OWN cannot be passed"),
        ("=x", "'' is not the name of a variable"),
        ("A B=x", "'A B' is not the name of a variable"),
        ("1A", "'1A' is not the name of a variable"),
        ("A*B", "'A*B' is not the name of a variable"),
        ("A*=1", "'A*' is not the name of a variable"),
    ],
)
def test_what_cannot_be_passed_is_refused(text, message):
    with pytest.raises(UsageError, match=r"^--pass-env") as caught:
        passed(text, refused=["OWN"])
    assert message in str(caught.value)
