"""What is measured: workloads, their candidates, and what one run of a candidate gives."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


class Tier(enum.IntEnum):
    """The smallest kind of run that a candidate is part of."""

    QUICK = 0
    DEFAULT = 1
    LARGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long one run measures, in seconds, and how long it works before that."""

    seconds: float
    warm_up: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one run gave. *settings* is the durability, as the connection that wrote reports it."""

    figures: Mapping[str, float]
    settings: str


class PeerMissingError(Exception):
    """The peer is not installed: its row says so and the other rows are measured."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed; pip install 'postbus[bench]'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One row: *run* gets an empty folder, in which *prepare* was called in a process of its own."""

    name: str
    label: str
    run: Callable[[Path, Effort], Sample]
    prepare: Callable[[Path], None] | None = None
    tier: Tier = Tier.QUICK
    time_limit: float = 60.0


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of every row that has it."""

    key: str
    label: str
    unit: str


@dataclass(frozen=True, slots=True)
class RatioColumn:
    """A figure of every row, divided by the same figure of one row in the same round."""

    key: str
    label: str
    baseline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Candidates that do the same job, so that their figures may be divided by each other."""

    name: str
    title: str
    candidates: tuple[Candidate, ...]
    columns: tuple[Column, ...]
    ratios: tuple[RatioColumn, ...] = ()
    note: str = ""
    # Then the folder that a candidate gets says which database is its own.
    needs_postgres: bool = False

    def candidate(self, name: str) -> Candidate:
        """The candidate of this name. KeyError."""
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(f"{self.name} has no candidate {name!r}")
