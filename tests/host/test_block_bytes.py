"""The planner's bytes of a block are those that MindIE-LLM's own arithmetic allocates.

Of the host one class is run, from its source, with stand-ins for what it imports.
"""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from mindie_kvpool_plugin.planning.model_config import read_shape
from tests.unit.test_kv_shape import DEEPSEEK, QWEN

pytestmark = pytest.mark.mindie

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}


@pytest.fixture
def settings(monkeypatch, source):
    """The host's class."""
    file = source("text_generator/utils/kvcache_settings.py")
    stand_ins = {
        "acl": {"get_soc_name": lambda: "Ascend910_9362"},
        "mindie_llm": {},
        "mindie_llm.modeling": {},
        "mindie_llm.modeling.backend_type": {"BackendType": SimpleNamespace},
        "mindie_llm.utils": {},
        "mindie_llm.utils.log": {"logger": SimpleNamespace(debug=lambda *_: None)},
    }
    for name, content in stand_ins.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("kvcache_settings_of_the_host", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.KVCacheSettings


@pytest.mark.parametrize("tp", [1, 8, 16])
@pytest.mark.parametrize("is_nz", [False, True], ids=["nd", "nz"])
@pytest.mark.parametrize("guesses", [0, 2])
@pytest.mark.parametrize(
    "model",
    [
        DEEPSEEK,
        {**DEEPSEEK, "index_head_dim": 128},
        {**DEEPSEEK, "kv_lora_rank": 520, "quantization_config": {"fa_quant_type": "FAKQuant"}},
        QWEN,
        {**QWEN, "hidden_size": 64 * 40, "quantization_config": {"kv_quant_type": "C8"}},
    ],
    ids=["latent", "sparse", "int8 key", "heads", "int8"],
)
def test_the_host_allocates_what_the_planner_says(settings, model, guesses, is_nz, tp):
    """cache_block_bytes, for every kind of cache."""
    shape = read_shape(model, "config.json", draft_layers=guesses, is_nz=is_nz, is_torch="index_head_dim" in model)
    dtype = DTYPES[shape.dtype]
    layers = model["num_hidden_layers"]
    info = SimpleNamespace(
        num_layers=layers,
        num_kv_heads=shape.heads_per_rank(tp),
        head_size=shape.key,
        k_head_size=shape.key,
        v_head_size=shape.value,
        index_head_dim=shape.index or None,
        num_index_heads=1,
        dtype=dtype,
        data_byte_size=dtype.itemsize,
        kvcache_quant_layers=[shape.key_bytes < shape.element_bytes] * (layers + bool(guesses)),
        enable_nz=shape.is_nz,
    )
    found = settings(0, info, 0, 20, 128, "atb", False, guesses)
    assert shape.block_bytes(128, tp) == found.cache_block_bytes
    assert found.num_npu_blocks == 20 * 2**30 // shape.block_bytes(128, tp)
