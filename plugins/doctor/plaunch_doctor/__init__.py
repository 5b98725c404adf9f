"""The doctor: checks a node for common problems before a job runs into them.

`plaunch --doctor` runs the checks in `plaunch_doctor.checks`, and those that plugins add with the
hook `plaunch_doctor_checks`. `plaunch_doctor.health` has the checks that `--health-check` runs
before a node joins. This module imports nothing, because every command line imports this package.
"""
