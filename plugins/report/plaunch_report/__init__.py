"""Reports on runs: the text about workers that failed, and `plaunch-report`.

`failure_report` is that text, which the launcher asks for. All else is a program beside the
launcher, which never imports it: one HTML page about a run, from the events that its agents wrote
as jsonl, or that a failure bundle has (`bundles`). The way of the data: `reading` has lines become
agents, `launches` says which of them belong together, `clocks` puts them on one time axis, `story`
finds out what happened, and `page` (with `charts`) shows it.
"""
