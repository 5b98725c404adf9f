"""Process contexts: the workers of one start, as torch's `start_processes` gives them."""
