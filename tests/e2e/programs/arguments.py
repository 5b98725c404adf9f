"""Shows its arguments, its name and what it writes where."""

import os
import sys

sys.stdout.write(" ".join([os.environ["RANK"], __name__, *sys.argv[1:]]) + "\n")
sys.stderr.write(f"rank {os.environ['RANK']} on stderr\n")
