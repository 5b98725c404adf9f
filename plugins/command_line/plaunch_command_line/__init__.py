"""Help with the command line: settings file, shell completion, dry run and advice.

The first three can be blocked by name: `settings_file`, `completion` and `dry_run`. Advice never
rejects a command line: it warns of options that have no effect or are in the wrong place, and
extends the error about a script that does not exist.

Every command line imports this package, so it imports nothing itself.
"""
