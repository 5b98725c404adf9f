"""What helps with a command line: settings file, shell completion, dry run and advice.

Each can be blocked by its name: `settings_file`, `completion` and `dry_run`. Advice refuses
nothing: it warns of options that have no effect or stand in the wrong place, and the error about a
script that does not exist says what could help.

Nothing is imported here: this package is on every command line's way.
"""
