"""Charts: every figure is there as text, in its place, whatever the figures are."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.charted import CHARTED, charts_of, kind_of
from bench.charts import Bar, Kind, choose_scale, draw
from bench.workloads import WORKLOADS
from postbus.ops.bench.harness import NotInstalled, Summary
from postbus.ops.bench.model import Workload
from tests.bench.steps import WORKLOAD, results_of, sample

SVG = "{http://www.w3.org/2000/svg}"


def bar(median: float, *, low: float | None = None, high: float | None = None, count: int = 3) -> Bar:
    figure = Summary(
        median, median * 0.9 if low is None else low, median * 1.1 if high is None else high, count
    )
    return Bar(label=f"the row of {median:g}", kind=Kind.POSTBUS, figure=figure)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def bar_widths(svg: str) -> list[float]:
    bars = [element for element in ElementTree.fromstring(svg).iter(f"{SVG}rect") if list(element)]
    return [float(element.attrib["width"]) for element in bars]


def test_a_chart_says_all_in_text() -> None:
    """Title, axis, labels and medians can be searched, copied and read aloud."""
    words = texts(draw("events & more", "events/s", [bar(1000), bar(2000)]))

    assert {"events & more", "events/s", "the row of 1000", "1,000", "the row of 2000", "2,000"} <= set(words)


def test_bars_are_as_long_as_their_figures_on_a_linear_scale() -> None:
    """It begins at zero."""
    [one, three] = bar_widths(draw("title", "axis", [bar(100), bar(300)]))

    assert three / one == pytest.approx(3, rel=0.01)


def test_figures_that_span_too_much_are_drawn_on_a_logarithmic_scale() -> None:
    """The axis says so, and each tenfold is a step of the same length."""
    svg = draw("title", "events/s", [bar(10), bar(100), bar(1000)])
    [ten, hundred, thousand] = bar_widths(svg)

    assert "events/s, logarithmic scale" in texts(svg)
    assert hundred - ten == pytest.approx(thousand - hundred, abs=0.2)
    assert not choose_scale([Summary(1, 1, 1, 1), Summary(30, 30, 30, 1)]).is_log


def test_a_row_without_a_figure_says_why() -> None:
    """It is never left out."""
    missing = Bar(label="a peer", kind=Kind.PEER, figure=None, remark="not measured: not installed")

    assert {"a peer", "not measured: not installed"} <= set(texts(draw("title", "axis", [bar(1), missing])))


def test_one_round_has_no_spread() -> None:
    """A whisker of no length would claim a precision that nobody measured."""
    once, thrice = draw("title", "axis", [bar(1, count=1)]), draw("title", "axis", [bar(1, count=3)])

    assert 'class="whisker"' not in once
    assert 'class="whisker"' in thrice


@given(
    st.lists(
        st.tuples(
            st.floats(min_value=1e-6, max_value=1e12), st.floats(min_value=0, max_value=1), st.floats(1, 50)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_nothing_is_drawn_outside_of_the_chart(rows: list[tuple[float, float, float]]) -> None:
    """Whatever was measured; labels and values have room beside the plot."""
    bars = [bar(median, low=median * below, high=median * above) for median, below, above in rows]
    svg = draw("title", "axis", bars)
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])

    for element in root.iter(f"{SVG}rect"):
        assert (
            0
            <= float(element.attrib["x"])
            <= float(element.attrib["x"]) + float(element.attrib["width"])
            <= width
        )
    for element in root.iter(f"{SVG}text"):
        assert 0 <= float(element.attrib["x"]) <= width
        assert 0 <= float(element.attrib["y"]) <= height
    for x in re.findall(r"[MH]([-\d.]+)", " ".join(path.attrib["d"] for path in root.iter(f"{SVG}path"))):
        assert math.isfinite(float(x))
        assert 0 <= float(x) <= width


def test_a_figure_of_zero_can_be_drawn() -> None:
    """A process that needed no memory, beside one that did."""
    zero = Bar(label="nothing", kind=Kind.RAW, figure=Summary(0, 0, 0, 3))

    assert "0.000" in texts(draw("title", "MB", [zero, bar(10), bar(1000)]))
    assert "0.000" in texts(draw("title", "MB", [zero]))


def test_a_chart_needs_two_rows_with_the_figure() -> None:
    """One bar says no more than its number, and a row with other figures is no part of it."""
    alone = results_of(ours=[sample(50.0)], peer=[NotInstalled("not installed")])
    both = results_of(ours=[sample(50.0)], raw=[sample(100.0)], peer=[NotInstalled("not installed")])

    assert list(charts_of(WORKLOAD, alone.rows)) == []
    [chart] = charts_of(WORKLOAD, both.rows)
    assert chart.file_name == "work.svg"
    assert {"the ours", "the raw", "not measured: not installed", "events/s, more is better"} <= set(
        texts(chart.svg)
    )


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_every_candidate_is_ours_raw_or_a_peer(workload: Workload) -> None:
    """A peer's row begins with its name, so that no row of ours is taken for one."""
    for candidate in workload.candidates:
        is_ours, is_raw = kind_of(candidate) is Kind.POSTBUS, kind_of(candidate) is Kind.RAW
        assert is_ours or is_raw or candidate.label.startswith(candidate.name.partition("-")[0])


def test_every_charted_figure_is_a_column() -> None:
    """A renamed column takes its chart along."""
    for name, keys in CHARTED.items():
        assert set(keys) <= {column.key for column in WORKLOADS[name].columns}
