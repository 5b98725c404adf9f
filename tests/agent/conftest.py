"""What the tests of agents share."""

from __future__ import annotations

from helpers.forked_launches import with_torch as with_torch
