"""Reports on runs: what the launcher says about one, failure bundles, and `plaunch-report`.

The launcher asks for `failure_report` and `console_report`, the texts about workers that failed,
and for the forms of its messages, `colors` and `json_lines`. The plugin `failure_bundle` makes one
file of what is known of a failure. All else is a program beside the launcher, which never imports
it: one HTML page about a run, from the events that its agents wrote as jsonl, or that a failure
bundle has (`bundles`). The way of the data: `reading` has lines become agents, `launches` says
which of them belong together, `clocks` puts them on one time axis, `story` finds out what happened,
and `page` (with `charts`) shows it.
"""
