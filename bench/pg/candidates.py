"""Candidates on PostgreSQL: they are given a database of their own, and peers are imported when they run."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from bench.model import Candidate, Effort, PeerMissingError, Sample, Tier
from bench.pg.server import dsn_in

Run = Callable[[str, Effort], Sample]
Prepare = Callable[[str], None]

_PEERS = ("eventsourcing", "pgqueuer", "procrastinate")


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
        return run(dsn_in(folder), effort)

    def prepare_in(folder: Path) -> None:
        assert prepare is not None
        prepare(dsn_in(folder))

    return Candidate(
        name=name,
        label=label,
        run=run_in,
        prepare=None if prepare is None else prepare_in,
        tier=tier,
        time_limit=time_limit,
    )


def of_peer(package: str, function: str, **arguments: object) -> Run:
    """The function of a peer's module, which is imported, and with it the peer, when it is called."""

    def run(dsn: str, effort: Effort) -> Sample:
        sample: Sample = getattr(load_peer(package), function)(dsn, effort, **arguments)
        return sample

    return run


def load_peer(package: str) -> ModuleType:
    """What we do with a peer. PeerMissingError."""
    try:
        return importlib.import_module(f"bench.pg.peers.of_{package}")
    except ModuleNotFoundError as error:
        # A mistake of ours is no missing peer.
        if (error.name or "").partition(".")[0] in ("bench", "tests", "postbus"):
            raise
        raise PeerMissingError(package) from error


def each_peer(
    function: str, label: str, suffix: str = "", tier: Tier = Tier.QUICK, **arguments: object
) -> tuple[Candidate, ...]:
    """The same candidate of every peer."""
    return tuple(
        on_postgres(
            f"{peer}{suffix}",
            f"{peer}: {label}",
            of_peer(peer, function, **arguments),
            tier=tier,
        )
        for peer in _PEERS
    )
