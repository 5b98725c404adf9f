"""`python -m plaunch_report`."""

from plaunch_report.cli import entry_point

if __name__ == "__main__":
    entry_point()
