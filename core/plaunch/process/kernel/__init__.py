"""What the kernel reports about processes: their ends, their table, their signals and limits."""
