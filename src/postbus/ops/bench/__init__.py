"""Measures postbus beside the raw driver: what `postbus bench` and the larger benchmark have in common."""
