"""The curve as a picture, by matplotlib; the ending of the name says which kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.messages import Refused
from mindie_kvpool_plugin.planning.curve import Curve

ENDINGS = (".png", ".svg", ".pdf")
Say = Callable[[str], str]


def expect(file: Path) -> None:
    """Find out before the curve is made.

    Raises:
        Refused: another ending than ``ENDINGS``, or matplotlib is missing.
    """
    if file.suffix not in ENDINGS:
        raise Refused("plan.odd_ending", file=file, endings=", ".join(ENDINGS))
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415  # only for a picture
    except ImportError as error:
        raise Refused("command.needs_matplotlib", option="--plot") from error


def write(curve: Curve, file: Path, planned: int | None, say: Say) -> None:
    """Draw hit rate, and what is written for it, over blocks.

    Args:
        curve: what to draw.
        file: where to, as ``expect`` takes it.
        planned: the size that was asked about, which gets a mark.
        say: a text of the catalog by its name.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415  # only for a picture
    from matplotlib.figure import Figure  # noqa: PLC0415

    # the same input gives the same bytes
    with mpl.rc_context({"svg.hashsalt": "mindie-kvpool", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        _draw(curve, figure, planned, say)
        metadata = {"Date": None} if file.suffix == ".svg" else {"CreationDate": None} if file.suffix == ".pdf" else {}
        figure.savefig(file, dpi=120, metadata=metadata)


def _draw(curve: Curve, figure: Any, planned: int | None, say: Say) -> None:
    axes = figure.add_subplot()
    blocks = [point.blocks for point in curve.points]
    device = [100 * point.device for point in curve.points]
    memory = [100 * (point.device + point.memory) for point in curve.points]
    axes.fill_between(blocks, device, color="#9ecae1", label=say("plan.device"))
    axes.fill_between(blocks, device, memory, color="#3182bd", label=say("plan.memory"))
    if curve.disk_blocks:
        hits = [100 * point.hits for point in curve.points]
        axes.fill_between(blocks, memory, hits, color="#e6550d", label=say("plan.disk"))
    axes.axhline(100 * curve.repeated, color="black", linestyle=":", label=say("plan.repeated"))
    axes.axvline(curve.knee.blocks, color="gray", linestyle="--", label=say("plan.knee"))
    second = [100 * point.hits for point in curve.second_use]
    axes.plot(blocks, second, color="black", label=say("plan.second_hits"))
    if planned is not None:
        axes.axvline(planned, color="green", label=say("plan.planned"))
    axes.set(xlabel=say("plan.blocks"), ylabel=f"{say('plan.hits')} (%)", xlim=(blocks[0], blocks[-1]), ylim=(0, None))
    writes = axes.twinx()
    for points, name, style in ((curve.points, "plan.writes", "--"), (curve.second_use, "plan.second_writes", "-")):
        writes.plot(blocks, [point.writes for point in points], style, color="#d62728", linewidth=1, label=say(name))
    writes.set(ylabel=say("plan.writes_axis"), ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=2)
