"""The doctor: checks of what usually breaks on a node, before a job finds out.

`plaunch --doctor` runs the checks in `plaunch_doctor.checks`, and those that plugins add with the
hook `plaunch_doctor_checks`. `plaunch_doctor.health` has those that `--health-check` runs before a
node joins. Nothing is imported here: this package is on every command line's way.
"""
