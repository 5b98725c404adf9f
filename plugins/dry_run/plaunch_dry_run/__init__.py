"""`--dry-run`: what a command line would do, and where each of its settings comes from."""
