"""Scenarios of published experiments. Each file says which settings are published and which are assumed."""
