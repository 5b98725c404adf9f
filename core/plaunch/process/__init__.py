"""Part of plaunch."""
