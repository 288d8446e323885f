"""What the plugin refuses at start, the check reports from the files, in the same words; and nothing else.

Every mode and pair of ``support`` is put to both sides: as the host's objects, and as a configuration.
"""

import json
from itertools import combinations

import pytest

from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.check.follow import follow
from mindie_kvpool_plugin.check.messages import message
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.rules.modes import active_modes
from mindie_kvpool_plugin.check.rules.view import View
from mindie_kvpool_plugin.check.situation import Disk, Situation
from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import modes
from tests.check_examples import BASE, changed
from tests.unit.host.deployment import active

PLUGINS = ("mtp", "la", "memory_decoding", "splitfuse")
SCALED = {"rope_scaling": {"rope_type": "dynamic"}}
SITUATIONS = {
    "tp": ({"tp": 4}, {"M.tp": 4}),
    "dp": ({"dp": 2}, {"M.dp": 2}),
    "dp_servers": ({"dp": 2, "distributed": True}, {"M.dp": 2, "C.distributedEnable": True}),
    "cp": ({"cp": 2}, {"M.cp": 2}),
    "sp": ({"sp": 4}, {"M.sp": 4}),
    "async_scheduling": ({"is_async": True}, {"env": "MINDIE_ASYNC_SCHEDULING_ENABLE"}),
    "pd_prefill": ({"model_role": "prefill"}, {"S.inferMode": "dmi"}),
    "pd_flex": ({"model_role": "flex"}, {"S.inferMode": "dmi"}),
    "pd_decode": ({"model_role": "decoder"}, {"S.inferMode": "dmi"}),
    "layerwise": ({"layerwise_disaggregated": True}, {"S.layerwiseDisaggregated": True}),
    "multimodal": ({"multimodal": True}, {"weights": {"model_type": "qwen2_vl"}}),
    "scaled_by_length": ({}, {"weights": SCALED}),
    "lora": ({"lora": True}, {"D.maxLoras": 2, "D.maxLoraRank": 16}),
    "backend_torch": ({"backend": "torch"}, {"M.backendType": "torch"}),
}
"""Key of a mode -> what the host's objects say, what the files say."""

IN_FILES = {
    "async_write": {"K.asyncWrite": True},
    "swap": {"M.cpuMemSize": 5, "C.maxPreemptCount": 1},
    "sparse_index": {"M.backendType": "torch", "weights": {"model_type": "deepseek_v32"}},
}
"""Modes that no row refuses at start: what the files say."""

ROLES = ("pd_prefill", "pd_flex", "pd_decode")
KEYS = (*SITUATIONS, *PLUGINS)


def both_sides(keys, folder):
    """(the modes start-up finds, the view the check has) of a deployment that asks for these modes."""
    settings, changes = {}, {"M.tp": 1, "K.backend": "mooncake", "K.configPath": "/none/kv_pool.json"}
    model_config = {}
    for key in keys:
        of_host, of_files = SITUATIONS.get(key, ({}, IN_FILES.get(key, {})))
        settings |= of_host
        changes |= of_files
        model_config |= changes.pop("weights", {})
    own = ["kv_pool"] if "pd_decode" in keys else ["prefix_cache", "kv_pool"]
    plugin_type = ",".join([*(word for word in PLUGINS if word in keys), *own])
    weights = folder / "config.json"
    weights.write_text(json.dumps(model_config or {"model_type": "qwen2"}))
    found = active(plugin_type=plugin_type, weights=str(folder), **settings)
    changes["M.plugin_params"] = json.dumps({"plugin_type": plugin_type})
    variable = changes.pop("env", None)
    return found, changed(changes), Situation(env={variable: "1"} if variable else {}, weight_config=weights)


def refused_at_start(found):
    try:
        modes.refuse_unsupported(found)
    except HostCompatError as error:
        return str(error).splitlines()
    return []


def refused_by_check(root, situation, lang="en"):
    report = check_bytes(json.dumps(root).encode(), "config.json", situation)
    return [(f, message(f, lang)) for f in report.findings if f.code == "KP-14"]


REFUSED = [frozenset({mode.key}) for mode in support.MODES if mode.status == "refused"]
REFUSED += [keys for pair in support.PAIRS if pair.status == "refused" for keys in pair.together]


@pytest.mark.parametrize("keys", REFUSED, ids=["+".join(sorted(keys)) for keys in REFUSED])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_check_says_what_the_start_would_say(keys, lang, tmp_path):
    """Sentence by sentence; where the node's role decides, the role stands before it."""
    found, root, situation = both_sides(keys, tmp_path)
    assert refused_at_start(found) == [refusal() for refusal in support.refusals(found)] != []
    told = refused_by_check(root, situation, lang)
    # the file leaves the role open: what a node would refuse in another role is told as well
    if not keys & set(ROLES):
        assert [text for _, text in told] == [refusal(lang) for refusal in support.refusals(found)]
    for refusal in support.refusals(found):
        ((finding, text),) = [(f, text) for f, text in told if text.endswith(refusal(lang))]
        assert (finding.severity, finding.outcome) == ("error", "late")
        roles = [role.removeprefix("pd_") for role in keys & {"pd_prefill", "pd_flex"}]
        assert all(role in text.removesuffix(refusal(lang)) for role in roles)


# a node has one role
TOGETHER = [{key} for key in KEYS] + [{*pair} for pair in combinations(KEYS, 2) if not {*pair} <= {*ROLES}]


@pytest.mark.parametrize("keys", TOGETHER, ids=["+".join(sorted(keys)) for keys in TOGETHER])
def test_both_sides_find_the_same_modes(keys, tmp_path):
    """Alone and two by two; of a role the files tell only that there is one."""
    found, root, situation = both_sides(keys, tmp_path)
    view = View(root, situation, follow(root, situation, Disk()))
    assert set(active_modes(view)) == found - set(ROLES)
    # one role of those that are possible is refused: told, with the role
    is_told = bool(refused_by_check(root, situation))
    assert is_told >= bool(refused_at_start(found))
    if not keys & set(ROLES):
        assert is_told == bool(refused_at_start(found))


def test_every_mode_a_start_can_find_is_tried(tmp_path):
    """A key added to ``host.modes`` needs its line above; groups have one scheduler or one each."""
    everything = {key for key in KEYS if key not in PLUGINS}
    backend = {"tp": 2, "dp": 2, "cp": 2, "sp": 2, "distributed": True, "is_async": True, "multimodal": True}
    backend["lora"] = True
    (tmp_path / "config.json").write_text(json.dumps(SCALED))
    backend["weights"] = str(tmp_path)
    found = active(**backend, backend="torch", layerwise_disaggregated=True, plugin_type=",".join(PLUGINS))
    assert found == everything - {*ROLES, "dp"} | set(PLUGINS)


@pytest.mark.parametrize("words", ["prefix_cache", "mtp,prefix_cache"])
def test_without_the_word_nothing_is_refused(words, tmp_path):
    """The host's own pool has rules of its own."""
    _, root, situation = both_sides({"layerwise", "multimodal"}, tmp_path)
    root["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]["plugin_params"] = json.dumps({"plugin_type": words})
    assert refused_by_check(root, situation) == []


ACCEPTED = {
    "splitfuse": {"M.plugin_params": '{"plugin_type":"prefix_cache,splitfuse,kv_pool"}', "C.templateType": "Mix"},
    "cp and sp": {"M.tp": 2, "M.sp": 2, "M.cp": 2, "M.moe_tp": 4},
    "la": {
        "M.plugin_params": '{"plugin_type":"la,prefix_cache,kv_pool","level":4,"window":5,"guess_set_size":5}',
        "D.speculationGamma": 30,
    },
    "memory_decoding": {
        "M.plugin_params": '{"plugin_type":"memory_decoding,prefix_cache,kv_pool","decoding_length":16}',
        "D.speculationGamma": 16,
    },
    "LoRA": {"D.maxLoras": 2, "D.maxLoraRank": 16},
    "asyncWrite and LoRA": {"D.maxLoras": 2, "D.maxLoraRank": 16, "K.asyncWrite": True},
    "a scheduler per rank": {
        "S.inferMode": "dmi",
        "M.dp": 2,
        "M.worldSize": 2,
        "B.npuDeviceIds": [[0, 1]],
        "C.distributedEnable": True,
    },
    "decode node": {"S.inferMode": "dmi", "M.plugin_params": '{"plugin_type":"kv_pool"}'},
    "DeepSeek V3.2": {"M.modelName": "deepseek_v3.2"},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_plugin_accepts_is_no_error(name, tmp_path):
    """The host's documents may advise otherwise: a warning at most."""
    pool = json.loads((BASE / "kv_pool.json").read_text(encoding="utf-8"))
    if name == "a scheduler per rank":
        pool["kv_pool"] = {"agreement": "tcp://192.168.10.1:18888"}
    (tmp_path / "kv_pool.json").write_text(json.dumps(pool))
    changes = {"K.backend": "mooncake", "K.configPath": str(tmp_path / "kv_pool.json")}
    changes |= {"M.plugin_params": '{"plugin_type":"prefix_cache,kv_pool"}'} | ACCEPTED[name]
    report = check_bytes(json.dumps(changed(changes)).encode(), "config.json", Situation(env={}))
    assert [(f.code, f.path) for f in report.findings if f.severity == "error"] == []


EXCLUDED = [(pair.code, keys) for pair in support.PAIRS if pair.code for keys in pair.together]


@pytest.mark.parametrize(("code", "keys"), EXCLUDED, ids=["+".join(sorted(keys)) for _, keys in EXCLUDED])
def test_what_the_host_ends_is_told_by_a_rule_of_its_own(code, keys, tmp_path):
    """Once, as an error; the plugin is not built then, so that it has nothing to say."""
    found, root, situation = both_sides(keys, tmp_path)
    assert refused_at_start(found) == refused_by_check(root, situation) == []
    report = check_bytes(json.dumps(root).encode(), "config.json", situation)
    assert code in {f.code for f in report.findings if f.severity == "error"}
