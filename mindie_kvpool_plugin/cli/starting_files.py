"""The files a deployment starts from: an example of ``conf_examples`` fitted to a model, its cards and its nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.options.mooncake import joined, share_memory
from mindie_kvpool_plugin.options.sizes import size_text

EXAMPLES = Path(__file__).parents[1] / "conf_examples"
MASTER_PORT, AGREEMENT_PORT = 50051, 18888
# kept for answers when a model takes less than the example
_ANSWER_SHARE = 4

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the files are for.

    Attributes:
        model: folder of the weights; None leaves the example's.
        nodes: servers that serve one instance.
        cards: NPU dies of each; None leaves the example's.
        hosts: an address for each node; those missing are the example's.
        protocol: Mooncake's transport.
        device: its network device, with rdma.
        dram_bytes: memory that each node gives to the pool, all ranks together; None leaves the example's.
    """

    model: Path | None = None
    nodes: int = 1
    cards: int | None = None
    hosts: tuple[str, ...] = ()
    protocol: str = "ascend"
    device: str = ""
    dram_bytes: int | None = None

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.model.name.lower() if self.model is not None else ""

    def host(self, node: int) -> str:
        """A node's address."""
        return self.hosts[node] if node < len(self.hosts) else f"192.168.10.{11 + node}"


def starting_files(wish: Wish, folder: Path) -> dict[Path, str]:
    """Path -> content of every file; of several nodes each has a folder.

    Raises:
        TooLittleMemoryError: the DRAM does not suffice for a segment per rank.
    """
    weights = _weights(wish.model)
    config = _config(wish, weights)
    files: dict[Path, str] = {}
    for node in range(wish.nodes):
        place = folder / f"node{node}" if wish.nodes > 1 else folder
        files[place / "config.json"] = _text(_of_node(config, wish, node, place))
        files[place / "kv_pool.json"] = _text(_pool(wish, node, config))
    if wish.nodes > 1:
        files[folder / "rank_table.json"] = _text(_rank_table(wish, _model(config)["worldSize"]))
    return files


def _text(value: Object) -> str:
    return json.dumps(value, indent=4, ensure_ascii=False) + "\n"


def _weights(model: Path | None) -> Object:
    """config.json of the weights; {} when it is not here."""
    try:
        value = json.loads((model / "config.json").read_bytes()) if model is not None else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_deepseek(wish: Wish, weights: Object) -> bool:
    if wish.model is None:
        return wish.nodes > 1  # a model that needs them
    return "deepseek" in str(weights.get("model_type", wish.name))


def _example(name: str, file: str) -> Object:
    value: Object = json.loads((EXAMPLES / name / file).read_text(encoding="utf-8"))
    value.pop("$schema", None)  # of the checkout
    return value


def _example_name(wish: Wish, weights: Object) -> str:
    if _is_deepseek(wish, weights):
        return "deepseek_r1_8_cards" if wish.nodes == 1 else "deepseek_r1_two_nodes"
    return "qwen_one_server" if wish.nodes == 1 else "several_nodes"


def _model(config: Object) -> Object:
    model: Object = config["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]
    return model


def _config(wish: Wish, weights: Object) -> Object:
    """What all nodes have in common."""
    config = _example(_example_name(wish, weights), "config.json")
    backend, model = config["BackendConfig"], _model(config)
    model["worldSize"] = cards = wish.cards or model["worldSize"]
    backend["npuDeviceIds"] = [list(range(cards))]
    if wish.model is not None:
        model |= {"modelName": wish.name, "modelWeightPath": str(wish.model)}
    model |= _parallel(wish, cards, is_deepseek=_is_deepseek(wish, weights))
    if not _is_deepseek(wish, weights):
        for key in ("moe_tp", "moe_ep", "models"):
            model.pop(key, None)
    elif weights and not weights.get("num_nextn_predict_layers"):
        model["plugin_params"] = '{"plugin_type":"prefix_cache,kv_pool"}'  # no layer for mtp
    _shorten(config, weights.get("max_position_embeddings"))
    return config


def _parallel(wish: Wish, cards: int, *, is_deepseek: bool) -> Object:
    if is_deepseek:
        return {"tp": cards, "dp": wish.nodes, "moe_tp": 1, "moe_ep": cards * wish.nodes}
    return {"tp": cards * wish.nodes, "dp": 1} if wish.nodes > 1 else {}


def _shorten(config: Object, longest: Any) -> None:
    """Lengths that the model can take."""
    deploy, schedule = config["BackendConfig"]["ModelDeployConfig"], config["BackendConfig"]["ScheduleConfig"]
    if not isinstance(longest, int) or longest >= deploy["maxSeqLen"]:
        return
    deploy["maxSeqLen"] = longest
    deploy["maxInputTokenLen"] = longest - longest // _ANSWER_SHARE
    schedule["maxPrefillTokens"] = deploy["maxInputTokenLen"]
    schedule["maxIterTimes"] = min(schedule["maxIterTimes"], longest)


def _of_node(config: Object, wish: Wish, node: int, place: Path) -> Object:
    """The configuration with what differs between nodes; alone, it names the pool file where it is written."""
    own: Object = json.loads(json.dumps(config))
    if wish.nodes > 1:
        own["ServerConfig"] |= {"ipAddress": wish.host(node), "managementIpAddress": wish.host(node)}
    else:
        own["BackendConfig"]["kvPoolConfig"]["configPath"] = str((place / "kv_pool.json").absolute())
    return own


def _pool(wish: Wish, node: int, config: Object) -> Object:
    model = _model(config)
    pool = _example("qwen_one_server", "kv_pool.json")
    pool |= {
        "local_hostname": wish.host(node),
        "master_server_address": joined(wish.host(0), MASTER_PORT),
        "protocol": wish.protocol,
        "device_name": wish.device,
    }
    if wish.dram_bytes is not None:
        pool |= _sizes(wish.dram_bytes, model["worldSize"])
    section = {"namespace": model["modelName"]}
    if wish.nodes > 1:
        section["agreement"] = f"tcp://{joined(wish.host(0), AGREEMENT_PORT)}"
    return pool | {"kv_pool": section}


def _sizes(dram_bytes: int, ranks: int) -> Object:
    segment, buffer = share_memory(dram_bytes, ranks)
    return {"global_segment_size": size_text(segment), "local_buffer_size": size_text(buffer)}


def _rank_table(wish: Wish, cards: int) -> Object:
    return {
        "version": "1.0",
        "server_count": str(wish.nodes),
        "status": "completed",
        "server_list": list(_servers(wish, cards)),
    }


def _servers(wish: Wish, cards: int) -> Iterator[Object]:
    for node in range(wish.nodes):
        devices = [
            {
                "device_id": str(card),
                "device_ip": f"10.20.{node + 1}.{card + 1}",
                "rank_id": str(node * cards + card),
            }
            for card in range(cards)
        ]
        yield {"server_id": wish.host(node), "container_ip": wish.host(node), "device": devices}
