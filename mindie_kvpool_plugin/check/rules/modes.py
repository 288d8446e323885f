"""Which modes of MindIE-LLM a configuration asks for, by the keys of ``support.MODES``.

The counterpart of ``host.modes``, which asks the host's objects when a worker is built: what it finds there is read
here from the files and the environment.  A node's role is in no file; what plugin_type says leaves some of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.check.rules.family import family
from mindie_kvpool_plugin.check.rules.view import B, C, S, View, integer, text, worker_integer

Place = tuple[str | int, ...]

PLUGIN_MODES = ("mtp", "la", "memory_decoding", "splitfuse")
ASYNC_SCHEDULING = "MINDIE_ASYNC_SCHEDULING_ENABLE"


def active_modes(view: View) -> dict[str, Place]:
    """The modes of a deployment without its role, each with the place in config.json that asks for it."""
    found: dict[str, Place] = {}
    for index in range(len(view.models)):
        for key, place in _of_model(view, index):
            found.setdefault(key, place)
    found.update((key, view.plugins_path()) for key in PLUGIN_MODES if key in view.words)
    if "dp" in found and view.schedule.get("distributedEnable") is True:
        del found["dp"]
        found["dp_servers"] = (B, C, "distributedEnable")
    if view.server.get("layerwiseDisaggregated") is True:
        found["layerwise"] = (S, "layerwiseDisaggregated")
    if view.has_lora:
        found["lora"] = view.lora_path
    if view.situation.variable(ASYNC_SCHEDULING) == "1":
        found["async_scheduling"] = view.plugins_path()
    return found


def roles(view: View) -> tuple[str, ...]:
    """What a node with this file may be: the host refuses prefix_cache on decode nodes and needs it elsewhere."""
    if not view.is_dmi:
        return ("standard",)
    return ("pd_prefill", "pd_flex") if view.is_prefix else ("pd_decode",)


def _of_model(view: View, index: int) -> Iterator[tuple[str, Place]]:
    model = view.models[index]
    for key in ("dp", "cp", "sp"):
        if (worker_integer(model, key) or 1) > 1:
            yield key, view.model_path(index, key)
    named = worker_integer(model, "tp")
    size = worker_integer(model, "worldSize") if named in (None, -1) else named
    if (size or 1) > 1:
        yield "tp", view.model_path(index, "tp" if "tp" in model else "worldSize")
    if support.is_multimodal(family(view, index).config):
        yield "multimodal", view.model_path(index, "modelWeightPath")
    positions = worker_integer(model, "max_position_embeddings")
    if support.scales_by_length(family(view, index).config, integer(view.deploy, "maxSeqLen") or 0, positions):
        yield "scaled_by_length", view.model_path(index, "modelWeightPath")
    if view.lora_file(index) is not None:
        yield "lora", view.model_path(index, "modelWeightPath")
    if text(model, "backendType") == "torch":
        yield "backend_torch", view.model_path(index, "backendType")
