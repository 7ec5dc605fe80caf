"""Small plots as SVG that takes its colours and its type from the page: matplotlib draws them in stand-in colours, for
each of which a CSS variable is then put."""

import io
import re
from collections.abc import Iterable

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullFormatter, NullLocator

INK, FAINT = "#010101", "#020202"
# colour and marker of each engine: told apart without colour too
LOOKS = {
    "ours": ("#030303", "o"),
    "torch_nn": ("#040404", "s"),
    "compile": ("#050505", "v"),
    "onnxruntime": ("#060606", "^"),
    "openvino": ("#070707", "D"),
    "jax": ("#080808", "P"),
}
VARIABLES = {INK: "currentColor", FAINT: "var(--faint)"} | {
    colour: f"var(--{engine.replace('_', '-')})" for engine, (colour, _) in LOOKS.items()
}
MARKERS = {"GRU": "o", "LSTM": "s", "RNN": "^"}
STYLE = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.6,
}


def svg(figure: Figure, label: str) -> str:
    """The figure as an element of a page, with what it shows in words for those who cannot see it."""
    text = io.StringIO()
    # the salt keeps the ids of one figure apart from those of the next, and the same from run to run
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    # the page has a style of its own, and nothing refers to a group
    drawn = re.sub(r"<style.*?</style>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)
    drawn = re.sub(r'font-family: [^;"]*', "font-family: var(--type)", drawn)
    for colour, variable in VARIABLES.items():
        drawn = drawn.replace(colour, variable)
    width, height = figure.get_size_inches() * 72
    return re.sub(
        r"<svg[^>]*>",
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">',
        drawn,
        count=1,
    )


def panel(title: str, width: float = 3.4, height: float = 2.5) -> tuple[Figure, Axes]:
    """A figure of one log-log panel, in inches."""
    figure = Figure((width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log")
    axes.set_title(title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    return figure, axes


def span(values: Iterable[float]) -> tuple[float, float]:
    """Limits that hold the values, a little wider."""
    values = list(values)
    return min(values) / 1.5, max(values) * 1.5


def curves(
    title: str, size: str, times: dict[str, dict[int, float]], floor: dict[int, float], limits: tuple[float, float]
) -> str:
    """Seconds against one size: `times[engine][size]`, and below them the least the machine could take."""
    with matplotlib.rc_context(STYLE):
        figure, axes = panel(title)
        axes.fill_between(list(floor), [limits[0]] * len(floor), list(floor.values()), color=FAINT, alpha=0.35, lw=0)
        for engine, points in times.items():
            colour, marker = LOOKS[engine]
            front = 3 if engine == "ours" else 2
            axes.plot(list(points), list(points.values()), color=colour, marker=marker, zorder=front)
        axes.xaxis.set_major_locator(FixedLocator(sorted({x for points in times.values() for x in points})))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_major_locator(LogLocator(numticks=12))
        axes.yaxis.set_major_formatter(EngFormatter("s"))
        axes.set(xlabel=size, ylim=limits)
        return svg(figure, f"{title}: time against {size}")


def roofline(
    title: str, points: dict[str, list[tuple[float, float]]], peak: float, roofs: list[float], limits: tuple
) -> str:
    """GFLOP/s against flops a byte, `points[cell]`, under the machine's `peak` and its `roofs` of GB/s."""
    (left, right), (low, high) = limits
    with matplotlib.rc_context(STYLE):
        figure, axes = panel(title, width=4.2, height=3)
        axes.plot([left, right], [peak, peak], color=INK, lw=0.9)
        axes.annotate(f"{peak:g} GFLOP/s", (right, peak), xytext=(0, 3), textcoords="offset points", ha="right")
        for rate in roofs:
            start = max(left, low / rate)
            axes.plot([start, peak / rate], [start * rate, peak], color=INK, lw=0.9, ls=(0, (4, 2)))
        for cell, found in points.items():
            x, y = zip(*found, strict=True)
            axes.plot(x, y, ls="", marker=MARKERS[cell], color=LOOKS["ours"][0], alpha=0.8, mew=0)
        axes.set(xlim=(left, right), ylim=(low, high), xlabel="flops a byte", ylabel="GFLOP/s")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        return svg(figure, f"{title}: roofline")


def errors(title: str, points: dict[str, list[tuple[float, float]]], limits: tuple[float, float], allowed: int) -> str:
    """Our error against torch.nn's, `points[cell]`, with the lines of equal and of `allowed` times the error."""
    with matplotlib.rc_context(STYLE):
        figure, axes = panel(title, width=3.4, height=3.2)
        axes.plot(limits, limits, color=INK, lw=0.9)
        axes.plot(limits, [allowed * x for x in limits], color=INK, lw=0.9, ls=(0, (4, 2)))
        for cell, found in points.items():
            x, y = zip(*found, strict=True)
            axes.plot(x, y, ls="", marker=MARKERS[cell], color=LOOKS["ours"][0], alpha=0.8, mew=0)
        axes.set(xlim=limits, ylim=limits, aspect="equal", xlabel="error of torch.nn", ylabel="error of ours")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(numticks=12))
            axis.set_major_formatter(lambda x, _: f"{x:.0e}".replace("e-0", "e-"))
        return svg(figure, f"{title}: error of ours against that of torch.nn")
