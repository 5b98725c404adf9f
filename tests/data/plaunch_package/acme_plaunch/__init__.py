"""A third party's plugins for plaunch; they use public names only."""
