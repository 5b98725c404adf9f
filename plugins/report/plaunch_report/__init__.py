"""Reports on runs: the launcher's failure messages, failure bundles, and `plaunch-report`.

The launcher uses `failure_report` and `console_report`, the texts about failed workers, and the
formats of its messages, `colors` and `json_lines`. The plugin `failure_bundle` collects what is
known of a failure in one file. The launcher never imports the rest: `plaunch-report` writes one
HTML page about a run, from the events that its agents wrote as jsonl or that are in a failure
bundle (`bundles`). `event_files` reads agents from files, `launches` groups the agents by launch
and puts them on one time axis, `summary` combines their events, and `page` (with `charts`) shows
them.
"""
