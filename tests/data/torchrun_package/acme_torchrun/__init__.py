"""Plugins for torchrun, written against torch alone; nothing here knows plaunch."""
