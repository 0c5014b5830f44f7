"""The event loop is never blocked by the disk: others in it hardly notice a hundred publishers."""

from pathlib import Path

from tests.end_to_end.processes import Child

RUN_COUNT = 3
BAR = 0.010


def test_a_ticker_beside_a_hundred_publishers_is_hardly_late(tmp_path: Path) -> None:
    """99 of 100 ticks of 1 ms are late by less than 10 ms; the best of three runs, for a noisy machine."""
    reports = []
    for number in range(RUN_COUNT):
        with Child("tick_beside_publishers", tmp_path / f"{number}.db", folder=tmp_path) as child:
            late, published, report = child.hear().split(" ", 2)
            assert child.wait() == 0, child.errors()
        reports.append(f"{published} events published; {report}")
        assert int(published) > 100
        if float(late) < BAR:
            break
    else:
        raise AssertionError("\n".join(reports))
