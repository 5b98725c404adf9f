"""The token of the job: how users set it, and the check that the backend uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.rendezvous.parameters import RendezvousParameters

TOKEN_OPTION = "token_file"  # noqa: S105 - the name of an option
TOKEN_VARIABLE = "PLAUNCH_RDZV_TOKEN"  # noqa: S105 - the name of a variable


def check_token_is_used(params: RendezvousParameters, environ: Mapping[str, str]) -> None:
    """Check that the backend has read the token, if one is set: its user relies on it.

    Raises:
        UsageError: it has not, and several nodes would exchange unsigned messages.
    """
    if TOKEN_OPTION in params.secrets_read or params.max_nodes == 1:
        return
    path = params.get(TOKEN_OPTION)
    if path is None and not environ.get(TOKEN_VARIABLE):
        return
    where = TOKEN_VARIABLE if path is None else f"--rdzv-conf {TOKEN_OPTION}={path}"
    raise UsageError(
        f"a job token is set ({where}), but rendezvous backend {params.backend!r} does not sign "
        "anything with it; choose a backend that does, such as c10d or etcd-v2, or remove the "
        "token"
    )
