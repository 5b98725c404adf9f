"""What the kernel tells of processes: their ends, their table, their signals and limits."""
