"""Shows how it is run."""

import os
import sys

from .part import NAME

spec = sys.modules["__main__"].__spec__
shown = [os.environ["RANK"], __name__, __package__, spec.name, NAME, *sys.argv[1:]]
sys.stdout.write(" ".join(shown) + "\n")
