"""What is told of a gap that stays open for long."""

import pytest

from postbus.delivery.gap_watch import _describe
from postbus.events import OpenWriter


@pytest.mark.parametrize(
    ("writer", "words"),
    [
        (
            OpenWriter(pid=7, application_name="import", gid=None, age_seconds=61.25),
            "the transaction of pid 7 (application 'import') has been open for 61.2 s",
        ),
        (
            OpenWriter(pid=7, application_name="import", gid=None, age_seconds=None),
            "the transaction of pid 7 (application 'import') has been open for an unknown time "
            "(its role may not be seen)",
        ),
        (
            OpenWriter(pid=None, application_name=None, gid="order 42", age_seconds=3600.0),
            "the prepared transaction 'order 42' has been open for 3600.0 s",
        ),
    ],
)
def test_a_writer_is_described_so_that_somebody_can_see_to_it(writer: OpenWriter, words: str) -> None:
    """An age that is not known is not made up."""
    assert _describe(writer) == words
