"""Delivers events to handlers: asynchronous, knows only ports and policy."""
