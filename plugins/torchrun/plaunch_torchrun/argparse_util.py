"""The names of `torch.distributed.argparse_util`: options whose defaults are `PET_*` variables."""

from __future__ import annotations

import argparse
import os
from typing import Any

from plaunch.errors import UsageError

_OFF, _ON = ("0", "false"), ("1", "true")


class env(argparse.Action):  # noqa: N801 - the name is torchrun's
    """An argument whose default is the variable `PET_<DEST>`, if that is set."""

    def __init__(
        self, dest: str, default: Any = None, required: bool = False, **kwargs: Any
    ) -> None:
        default = os.environ.get(f"PET_{dest.upper()}", default)
        super().__init__(
            dest=dest, default=default, required=required and default is None, **kwargs
        )

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Take the value from the command line."""
        setattr(namespace, self.dest, values)


class check_env(argparse.Action):  # noqa: N801 - the name is torchrun's
    """A flag that the variable `PET_<DEST>` sets as well, with 1 or true.

    Raises:
        UsageError: the variable is neither 0, 1, true nor false.
    """

    def __init__(self, dest: str, default: bool = False, **kwargs: Any) -> None:
        variable = f"PET_{dest.upper()}"
        text = os.environ.get(variable, str(default)).lower()
        if variable == "PET_STANDALONE" and not text:
            text = _ON[0]  # Kubeflow's training operator turns it on in this way
        if text not in _OFF + _ON:
            raise UsageError(f"variable {variable} is {text!r}; write 0, 1, true or false")
        super().__init__(dest=dest, const=True, default=text in _ON, nargs=0, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the flag."""
        setattr(namespace, self.dest, self.const)
