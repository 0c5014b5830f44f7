"""Reads "-- name:" blocks from a .sql file, so that SQL stays SQL and Python calls it by name."""

from collections.abc import Iterator, Mapping
from importlib import resources

_MARK = "-- name:"


def load_queries(package: str, file_name: str) -> Mapping[str, str]:
    """Every named block of a package's sql/ file, in the file's order; comments stay out."""
    text = resources.files(package).joinpath("sql", file_name).read_text(encoding="utf-8")
    queries: dict[str, str] = {}
    for name, query in _blocks(text):
        assert name not in queries, f"{file_name} has two blocks named {name}"
        queries[name] = query
    return queries


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    for block in text.split(_MARK)[1:]:
        name, _, body = block.partition("\n")
        lines = (line.rstrip() for line in body.splitlines() if not line.lstrip().startswith("--"))
        yield name.strip(), "\n".join(line for line in lines if line).rstrip(";")
