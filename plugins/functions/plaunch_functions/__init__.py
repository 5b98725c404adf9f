"""Workers that are functions: what is sent to them, what runs in them, what they return."""
