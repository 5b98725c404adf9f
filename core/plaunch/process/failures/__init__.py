"""Why workers failed: error files, out-of-memory kills, and the report."""
