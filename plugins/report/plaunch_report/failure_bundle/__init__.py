"""Failure bundles, one file with everything known about a failure: `--failure-bundle(s)`.

`extension` keeps the events of a launch, and writes a bundle when the job fails. If no option is
given, `plaunch_report.plugin` passes it the events that the launch has kept, after a failed job
that leaves files. `bundle` collects the parts in parallel, each within a time limit, and writes
the file. Each other
module collects one part, and is imported when a job has failed.
"""
