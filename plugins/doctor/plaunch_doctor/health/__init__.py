"""The built-in health checks; each module has one, and is imported if that is chosen."""
