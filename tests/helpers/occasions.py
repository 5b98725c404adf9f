"""Why a health check is asked."""

from __future__ import annotations

from plaunch.health import HealthOccasion

START, RESTART = HealthOccasion(), HealthOccasion(is_restart=True)
SHORT = HealthOccasion(is_restart=True, timeout=0.3)  # there is hardly time to wait
