"""How an instance is spread over ranks, as the host and its workers read it from ModelConfig."""

from __future__ import annotations

from dataclasses import dataclass

from mindie_kvpool_plugin.check.rules.nodes import node_count
from mindie_kvpool_plugin.check.rules.view import Section, View, integer, worker_integer


@dataclass(frozen=True, slots=True)
class Layout:
    """One instance.

    Attributes:
        tp, dp, cp, sp: sizes of the parallel groups of its attention; sp lies inside tp.
        nodes: servers it runs on.
        ranks_per_node: NPU dies of each.
    """

    tp: int = 1
    dp: int = 1
    cp: int = 1
    sp: int = 1
    nodes: int = 1
    ranks_per_node: int = 1

    @property
    def ranks(self) -> int:
        """On all its nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def is_whole(self) -> bool:
        """Whether the sizes make up the ranks, which the workers want."""
        return self.tp * self.dp * self.cp == self.ranks


def parallel_size(model: Section, key: str, default: int) -> int:
    """A size as the worker takes it; ``default`` where it names none or -1."""
    size = worker_integer(model, key)
    return default if size is None or size == -1 else size


def rank_counts(view: View, model: Section) -> tuple[int, int] | None:
    """(ranks of the instance, ranks of one node); None when the number of nodes is not known."""
    world = integer(model, "worldSize")
    nodes = node_count(view)
    if world is None or world < 1 or nodes is None:
        return None
    return world * nodes, world


def read_layout(view: View, index: int) -> Layout | None:
    """Of a ModelConfig entry; None when the number of ranks is not known."""
    model = view.models[index]
    counts = rank_counts(view, model)
    if counts is None:
        return None
    total, per_node = counts
    dp, cp, sp = (parallel_size(model, key, 1) for key in ("dp", "cp", "sp"))
    return Layout(parallel_size(model, "tp", total), dp, cp, sp, total // per_node, per_node)
