"""Occasions of health checks."""

from __future__ import annotations

from plaunch.health import HealthOccasion

START, RESTART = HealthOccasion(), HealthOccasion(is_restart=True)
SHORT = HealthOccasion(is_restart=True, timeout=0.3)  # almost no time to wait
