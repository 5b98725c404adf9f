"""The output of workers: the contracts of logs specs, streams and sinks."""
