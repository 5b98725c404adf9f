"""Starts `scale_run`."""

import sys

from scale_run import main

sys.exit(main())
