"""Reads and controls processes through the kernel: exits, /proc, signals, limits."""
