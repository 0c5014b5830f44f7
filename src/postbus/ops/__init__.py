"""Operates and watches a bus. Nothing below imports it."""
