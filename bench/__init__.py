"""Measures postbus beside the raw driver and its peers, in the same run: `python -m bench`."""
