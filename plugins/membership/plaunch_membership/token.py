"""The job's token: the secret with which nodes sign their records."""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.rendezvous import TOKEN_OPTION, TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.rendezvous import RendezvousParameters

_MIN_BYTES = 16
_MAX_BYTES = 4096

_log = logging.getLogger("plaunch")


def read_token(params: RendezvousParameters, environ: Mapping[str, str]) -> bytes | None:
    """Read the job's token, without surrounding white space; None if there is none.

    It is read from the file given by the option `token_file`, or else from `PLAUNCH_RDZV_TOKEN`. No
    error or message contains any of it.

    Raises:
        UsageError: the file cannot be read, or the token is empty, too short or too long.
    """
    path = params.get(TOKEN_OPTION)
    variable = environ.get(TOKEN_VARIABLE)
    params.secrets_read.add(TOKEN_OPTION)
    if path is not None:
        if variable:
            _log.debug("the job token is read from %r; %s is ignored", path, TOKEN_VARIABLE)
        return _checked(_read_file(str(path)), f"the token file {path!r} (--rdzv-conf)")
    if variable:
        return _checked(os.fsencode(variable), TOKEN_VARIABLE)
    return None


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the token file {path!r} (--rdzv-conf) cannot be read: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning(
            "the token file %r is open to every user of this machine (mode %03o); remove the "
            "permission with chmod o-rw",
            path,
            stat.S_IMODE(mode),
        )
    return content


def _checked(content: bytes, where: str) -> bytes:
    token = content.strip()
    if len(token) >= _MIN_BYTES and len(content) <= _MAX_BYTES:
        return token
    found = "is empty" if not token else f"has {len(token)} bytes"
    if len(content) > _MAX_BYTES:
        found = f"has more than {_MAX_BYTES} bytes"
    raise UsageError(
        f"{where} {found}; a job token has from {_MIN_BYTES} to {_MAX_BYTES} bytes, such as the "
        "output of `openssl rand -hex 32`"
    )
