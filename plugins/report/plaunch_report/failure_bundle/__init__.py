"""What is known of a failure, in one file: `--failure-bundle` and `--failure-bundles`.

`extension` keeps the events of a launch, and begins a bundle when a job fails. If no option is
given, `plaunch_report.plugin` hands it what the launch has kept of them, once a job has failed that
leaves files. `bundle` has what is in it made side by side, each part within a bound, and writes it.
The other modules are about one part each, and are imported when a job has failed.
"""
