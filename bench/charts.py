"""Bar charts as SVG: text stays text, files stay small, and a change of figures is a readable diff."""

import enum
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from postbus.ops.bench.harness import Summary
from postbus.ops.bench.report import number

_WIDTH = 860
_PADDING = 24
_PLOT_LEFT, _PLOT_RIGHT = 340, 762
_LABEL_CHARS, _TITLE_CHARS = 48, 92
_LINE_HEIGHT = 15
_BAR_HEIGHT = 16
# From here on the small bars of a linear scale can't be told apart.
_LARGEST_LINEAR_SPAN = 30
_TICK_COUNT = 5

# Blue, amber and a hollow grey: told apart by all kinds of colour vision, and on paper. The chart has
# a background of its own because a page may be dark where the reader's system is light.
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.value { font-weight: 600 }
.quiet { fill: #57606a }
.axis, .remark { fill: #57606a; font-size: 11px }
.remark { font-style: italic }
.paper { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d8dee4 }
.postbus { fill: #0072b2; stroke: #0072b2 }
.peer { fill: #e69f00; stroke: #b87d00 }
.raw { fill: #eef1f4; stroke: #6e7781 }
.whisker { stroke: #24292f; stroke-width: 1.5; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.quiet, .axis, .remark { fill: #9da7b3 }
.paper { fill: #0d1117; stroke: #30363d }
.grid { stroke: #262c36 }
.postbus { fill: #3d9be0; stroke: #3d9be0 }
.peer { fill: #d08a00; stroke: #f0b030 }
.raw { fill: #21262d; stroke: #9da7b3 }
.whisker { stroke: #f0f6fc }
}"""


class Kind(enum.StrEnum):
    """What a bar stands for, and so its colour."""

    POSTBUS = "postbus"
    RAW = "raw"
    PEER = "peer"


_LEGEND = {Kind.POSTBUS: "postbus", Kind.RAW: "raw driver", Kind.PEER: "other libraries"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a chart; without a figure *remark* says why."""

    label: str
    kind: Kind
    figure: Summary | None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value is drawn, and which values the axis names."""

    is_log: bool
    ticks: tuple[float, ...]
    place: Callable[[float], float]


def draw(title: str, axis: str, bars: Sequence[Bar]) -> str:
    """A chart of medians, with whiskers from the lowest to the highest figure."""
    scale = choose_scale([bar.figure for bar in bars if bar.figure is not None])
    title_lines = _wrap(title, _TITLE_CHARS)
    top = _PADDING + 20 * len(title_lines) + 36
    rows: list[str] = []
    bottom = top
    for bar in bars:
        height = max(30, 12 + _LINE_HEIGHT * len(_label_lines(bar)))
        rows.extend(_row(bar, scale, bottom + height / 2))
        bottom += height
    axis_text = f"{axis}, logarithmic scale" if scale.is_log else axis
    height = bottom + 56
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}\n</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
            *(
                _text(_PADDING, _PADDING + 10 + 20 * index, line, "title")
                for index, line in enumerate(title_lines)
            ),
            *_legend({bar.kind for bar in bars}, top - 21, any(_has_spread(bar) for bar in bars)),
            *_grid(scale, top, bottom),
            *rows,
            _text((_PLOT_LEFT + _PLOT_RIGHT) / 2, bottom + 40, axis_text, "axis", "middle"),
            "</svg>\n",
        ]
    )


def choose_scale(figures: Sequence[Summary]) -> Scale:
    """Linear from zero, or logarithmic where the figures span too much for that."""
    positive = [figure for figure in figures if figure.median > 0]
    high = max((figure.high for figure in positive), default=1.0)
    smallest = min((figure.median for figure in positive), default=high)
    if max((figure.median for figure in positive), default=1.0) <= _LARGEST_LINEAR_SPAN * smallest:
        step = _nice_step(high / _TICK_COUNT)
        ticks = tuple(step * index for index in range(math.floor(high / step) + 1))
        return Scale(False, ticks, lambda value: _across(value / high))
    # A decade below the smallest bar, or nearly so: a bar of no length would look like nothing.
    first = math.floor(math.log10(smallest * 0.6))
    decades = math.log10(high) - first
    marks = tuple(10.0**exponent for exponent in range(first, math.floor(math.log10(high)) + 1))
    return Scale(
        True, marks, lambda value: _across((math.log10(value) - first) / decades if value > 0 else 0.0)
    )


def _across(share: float) -> float:
    return _PLOT_LEFT + (_PLOT_RIGHT - _PLOT_LEFT) * min(max(share, 0.0), 1.0)


def _nice_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _row(bar: Bar, scale: Scale, middle: float) -> Iterator[str]:
    lines = _label_lines(bar)
    for index, line in enumerate(lines):
        offset = (index - (len(lines) - 1) / 2) * _LINE_HEIGHT
        yield _text(_PLOT_LEFT - 12, middle + 4 + offset, line, anchor="end")
    if bar.figure is None:
        yield _text(_PLOT_LEFT + 8, middle + 4, bar.remark, "remark")
        return
    end, low, high = (scale.place(value) for value in (bar.figure.median, bar.figure.low, bar.figure.high))
    found = number(bar.figure.median)
    spread = f" ({number(bar.figure.low)} … {number(bar.figure.high)})" if _has_spread(bar) else ""
    yield (
        f'<rect class="{bar.kind}" x="{_PLOT_LEFT}" y="{middle - _BAR_HEIGHT / 2:g}" '
        f'width="{max(end - _PLOT_LEFT, 1):.1f}" height="{_BAR_HEIGHT}">'
        f"<title>{escape(bar.label)}: {found}{spread}</title></rect>"
    )
    if _has_spread(bar):
        yield (
            f'<path class="whisker" d="M{low:.1f} {middle:g}H{high:.1f}'
            f'M{low:.1f} {middle - 4:g}v8M{high:.1f} {middle - 4:g}v8"/>'
        )
    yield _text(max(end, high) + 7, middle + 4, found, "value")


def _grid(scale: Scale, top: float, bottom: float) -> Iterator[str]:
    for tick in scale.ticks:
        x = scale.place(tick)
        yield f'<path class="grid" d="M{x:.1f} {top:g}V{bottom + 4:g}"/>'
        yield _text(x, bottom + 19, _tick_text(tick), "axis", "middle")


def _tick_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:g}"


def _legend(kinds: set[Kind], y: float, has_spread: bool) -> Iterator[str]:
    x = float(_PADDING)
    for kind, words in _LEGEND.items():
        if kind in kinds:
            yield f'<rect class="{kind}" x="{x:g}" y="{y - 10:g}" width="11" height="11"/>'
            yield _text(x + 17, y, words, "quiet")
            x += 17 + 6.6 * len(words) + 20
    words = "bar: median · line: lowest to highest" if has_spread else "one round"
    yield _text(_WIDTH - _PADDING, y, words, "quiet", "end")


def _label_lines(bar: Bar) -> list[str]:
    return _wrap(bar.label, _LABEL_CHARS)


def _wrap(words: str, width: int) -> list[str]:
    """As few lines as the width allows, and these of nearly equal length."""
    count = len(textwrap.wrap(words, width, break_on_hyphens=False))
    tries = (textwrap.wrap(words, each, break_on_hyphens=False) for each in range(1, width + 1))
    return next(lines for lines in tries if len(lines) <= count)


def _has_spread(bar: Bar) -> bool:
    return bar.figure is not None and bar.figure.count > 1


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    style_text = f' class="{style}"' if style else ""
    anchor_text = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:g}"{style_text}{anchor_text}>{escape(words, quote=False)}</text>'
