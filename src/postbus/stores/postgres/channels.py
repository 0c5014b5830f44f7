"""The channel on which the buses of one schema wake each other."""

import hashlib

# PostgreSQL refuses a longer name.
_MAX_BYTES = 63


def channel_name(schema: str) -> str:
    """Its name; the SQL functions make the same one.

    >>> channel_name("postbus")
    'postbus:postbus'
    >>> channel_name("s" * 60)
    'postbus:ff6578eb5e77e407b5c03f71070665f6'
    """
    name = f"postbus:{schema}"
    if len(name.encode()) <= _MAX_BYTES:
        return name
    return f"postbus:{hashlib.md5(schema.encode(), usedforsecurity=False).hexdigest()}"
