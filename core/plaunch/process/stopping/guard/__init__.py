"""The guard: a process that ends the workers if the launcher is killed."""
