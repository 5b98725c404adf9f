"""Why workers failed: error files and out-of-memory kills."""
