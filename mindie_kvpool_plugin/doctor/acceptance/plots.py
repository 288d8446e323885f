"""Figures of an acceptance as SVG, to stand in a page; labels are the same in every language."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mindie_kvpool_plugin.check.messages import Refused
from mindie_kvpool_plugin.doctor.acceptance.trial import Trial

SPEEDS = ("memcpy", "out", "into", "put", "get")
WAYS = ("computed", "device", "pool")
SIZE_INCHES = (7.5, 3.2)


def need_library() -> None:
    """Find out before anything is tried.

    Raises:
        Refused: matplotlib is missing.
    """
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415  # only for a page
    except ImportError as error:
        raise Refused("command.needs_matplotlib", option="--html") from error


def draw(case: Trial) -> Iterator[tuple[str, str]]:
    """(name, SVG) of what was measured."""
    if case.speeds:
        yield "speeds", _svg("speeds", lambda axes: _speeds(axes, case.speeds))
    if case.lookups:
        yield "lookups", _svg("lookups", lambda axes: _lookups(axes, case.lookups))
    if case.answers:
        yield "answers", _svg("answers", lambda axes: _answers(axes, case.answers))


def _svg(name: str, fill: Callable[[Any], None]) -> str:
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": f"mindie-kvpool {name}", "svg.fonttype": "none"}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        fill(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    # without the XML declaration and the document type, which a page has of its own
    return text.getvalue()[text.getvalue().index("<svg") :]


def _speeds(axes: Any, speeds: Mapping[int, Mapping[str, float]]) -> None:
    """Side by side per device: host memory, device, pool."""
    rows = {f"device {device}": {name: value / 1e6 for name, value in each.items()} for device, each in speeds.items()}
    _bars(axes, rows, SPEEDS)
    least = min((value for row in rows.values() for value in row.values()), default=1.0)
    axes.set(ylabel="MB/s", yscale="log", ylim=(least / 3, None))
    _plain(axes.yaxis)


def _answers(axes: Any, answers: Mapping[str, Mapping[str, float]]) -> None:
    _bars(axes, {f"prompt {name}": each for name, each in answers.items()}, WAYS)
    axes.set(ylabel="s", ylim=(0, None))


def _bars(axes: Any, rows: Mapping[str, Mapping[str, float]], names: tuple[str, ...]) -> None:
    shown = [name for name in names if any(name in row for row in rows.values())]
    width = 0.8 / max(1, len(shown))
    for at, name in enumerate(shown):
        places = [index + width * (at - (len(shown) - 1) / 2) for index in range(len(rows))]
        axes.bar(places, [row.get(name, 0) for row in rows.values()], width, label=name)
    axes.set_xticks(range(len(rows)), list(rows))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=max(1, len(shown)), fontsize="small", frameon=False)


def _lookups(axes: Any, lookups: Mapping[int, list[float]]) -> None:
    """How many of the lookups took at most so long."""
    for keys, times in sorted(lookups.items()):
        shares = [100 * (at + 1) / len(times) for at in range(len(times))]
        axes.plot(sorted(times), shares, label=f"{keys} keys")
    axes.set(xlabel="ms", ylabel="%", xscale="log", ylim=(0, 101))
    _plain(axes.xaxis)
    axes.legend(loc="lower right", fontsize="small")


def _plain(axis: Any) -> None:
    """Logarithmic, with numbers as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
