"""Candidates of the peers on PostgreSQL, which are imported when they run."""

import importlib
from types import ModuleType

from postbus.ops.bench.model import Candidate, Effort, PeerMissingError, Sample, Tier
from postbus.ops.bench.postgres.candidates import Run, on_postgres

_PEERS = ("eventsourcing", "pgqueuer", "procrastinate")


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
