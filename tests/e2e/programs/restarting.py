"""Fails the first time."""

import os
import sys

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
sys.stdout.write(f"rank {os.environ['RANK']}, attempt {attempt}\n")
sys.exit(3 if attempt == "0" and os.environ["RANK"] == "0" else 0)
