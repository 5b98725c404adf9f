"""What workers write: where it goes, who reads it, and what becomes of it on a slow console."""
