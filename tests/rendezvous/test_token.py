"""A token that no backend asks for."""

from __future__ import annotations

import copy

import pytest
from plaunch.errors import UsageError
from plaunch.rendezvous import TOKEN_OPTION, TOKEN_VARIABLE, RendezvousParameters
from plaunch.rendezvous.backend import check_token_is_used

SECRET = "correct horse battery staple"


@pytest.mark.parametrize(
    ("config", "environ", "where"),
    [
        ({"token_file": "/x"}, {}, "--rdzv-conf token_file=/x"),
        ({}, {TOKEN_VARIABLE: SECRET}, TOKEN_VARIABLE),
    ],
)
def test_a_token_without_a_backend_that_signs(config, environ, where):
    several = RendezvousParameters("other", "", "job", 1, 2, **config)
    with pytest.raises(UsageError, match="'other' does not sign anything") as caught:
        check_token_is_used(several, environ)
    assert where in str(caught.value)
    assert SECRET not in str(caught.value)
    # On one node there is nobody to tell apart.
    check_token_is_used(RendezvousParameters("other", "", "job", 1, 1, **config), environ)


def test_a_job_without_a_token_or_with_one_that_is_used():
    several = RendezvousParameters("other", "", "job", 1, 2)
    check_token_is_used(several, {})
    copied = copy.copy(several)
    copied.secrets_read.add(TOKEN_OPTION)
    check_token_is_used(several, {TOKEN_VARIABLE: SECRET})
