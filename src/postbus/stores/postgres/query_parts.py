"""Statements made of parts, so that what several of them need is written once."""

from collections.abc import Mapping


def fill_parts(queries: Mapping[str, str], **parts: str) -> Mapping[str, str]:
    """Every block, with other blocks wherever it names them in braces; *parts* count before blocks.

    >>> fill_parts({"columns": "id, {more}", "read": "SELECT {columns}", "more": "type"}, more="key")["read"]
    'SELECT id, key'
    """
    known = {**queries, **parts}
    return {name: _fill(query, known) for name, query in queries.items()}


def _fill(query: str, known: Mapping[str, str]) -> str:
    for name, part in known.items():
        if f"{{{name}}}" in query:
            query = query.replace(f"{{{name}}}", _fill(part, known))
    return query
