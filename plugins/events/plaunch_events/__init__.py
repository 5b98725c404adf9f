"""The built-in event handlers, a module for each: a launch imports those that it uses.

`null` drops events, `console` prints one line for each, `jsonl` writes a file for programs, and
`otel` makes traces of them.
"""
