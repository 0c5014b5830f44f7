"""The event loop is never blocked by the disk: others in it hardly notice a hundred publishers."""

from pathlib import Path

from tests.end_to_end.processes import Child

RUN_COUNT = 3
BAR = 0.010


def test_a_ticker_beside_a_hundred_publishers_is_hardly_late(tmp_path: Path) -> None:
    """99 of 100 ticks of 1 ms are late by less than 10 ms, in the best of three runs.

    Other programs keep a loop from running, too: what they do to one without a bus is taken off.
    """
    reports = []
    for number in range(RUN_COUNT):
        with Child("tick_beside_publishers", tmp_path / f"{number}.db", folder=tmp_path) as child:
            late, noise, published, report = (child.hear() for _ in range(4))
            assert child.wait() == 0, child.errors()
        reports.append(f"{published} events published; noise {noise}; {report}")
        assert int(published) > 100
        if float(late) < BAR + float(noise):
            break
    else:
        raise AssertionError("\n".join(reports))
