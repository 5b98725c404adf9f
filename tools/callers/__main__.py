"""Starts `callers_run`."""

import sys

from callers_run import main

sys.exit(main())
