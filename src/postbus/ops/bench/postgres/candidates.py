"""Candidates on PostgreSQL: the folder that each is given says which database is its own."""

from collections.abc import Callable
from pathlib import Path

from postbus.ops.bench.model import Candidate, Effort, Sample, Tier

Run = Callable[[str, Effort], Sample]
Prepare = Callable[[str], None]

_DSN_FILE = "dsn"


def on_postgres(
    name: str,
    label: str,
    run: Run,
    *,
    prepare: Prepare | None = None,
    tier: Tier = Tier.QUICK,
    time_limit: float = 60.0,
) -> Candidate:
    """A candidate whose functions take the DSN of its database."""

    def run_in(folder: Path, effort: Effort) -> Sample:
        return run(_dsn_in(folder), effort)

    def prepare_in(folder: Path) -> None:
        assert prepare is not None
        prepare(_dsn_in(folder))

    return Candidate(
        name=name,
        label=label,
        run=run_in,
        prepare=None if prepare is None else prepare_in,
        tier=tier,
        time_limit=time_limit,
    )


def leave_dsn(folder: Path, dsn: str) -> None:
    """Tell the processes that work in a folder which database is theirs."""
    (folder / _DSN_FILE).write_text(dsn, "utf-8")


def _dsn_in(folder: Path) -> str:
    return (folder / _DSN_FILE).read_text("utf-8")
