"""Why workers failed: error files, tracebacks, and out-of-memory kills."""
