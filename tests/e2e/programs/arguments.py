"""Prints its arguments and its name, to stdout and stderr."""

import os
import sys

sys.stdout.write(" ".join([os.environ["RANK"], __name__, *sys.argv[1:]]) + "\n")
sys.stderr.write(f"rank {os.environ['RANK']} on stderr\n")
