"""What ran where, as the README tells it: each area, and what shows it in each place.

A place is a test or a command of this tree, except the host's own Python code: that ran in a harness outside of it, on
MindIE-LLM 3.0.0 with a model that checks every byte; there the areas are only named.  No area names a real NPU.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Area:
    """One row.

    Attributes:
        en, zh: what it is.
        modes: keys of ``support.MODES`` that it is about.
        simulator, emulated, mooncake: paths that show it on the simulated host, under the real torch_npu on an emulated
            runtime and with a real Mooncake; empty: it did not run there.
        host: it ran in the host's real Python code.
        host_on_emulated: that code ran it with its cache on the emulated runtime's device, too.
    """

    en: str
    zh: str
    modes: tuple[str, ...] = ()
    simulator: str = ""
    host: bool = False
    host_on_emulated: bool = False
    emulated: str = ""
    mooncake: str = ""


AREAS = (
    Area(
        "blocks stored, looked up, loaded or recomputed; aborts",
        "块的存入、查询、取回或重新计算；中止",
        ("recompute",),
        "tests/walks/test_pool_runs.py",
        host=True,
        host_on_emulated=True,
        mooncake="tests/walks/test_chaos.py",
    ),
    Area(
        "asynchronous scheduling, `asyncWrite`",
        "异步调度、`asyncWrite`",
        ("async_scheduling", "async_write"),
        "tests/walks/test_races.py",
        host=True,
        host_on_emulated=True,
        emulated="tests/npu/test_waits.py",
        mooncake="chaos/scenarios.py",
    ),
    Area(
        "tensor parallelism; latent attention (MLA)",
        "张量并行；MLA",
        ("tp",),
        "tests/walks/test_rank_stumbles.py",
        host=True,
        host_on_emulated=True,
    ),
    Area(
        "data parallelism, one scheduler",
        "数据并行，一个调度器",
        ("dp",),
        "tests/walks/test_data_parallel.py",
        host=True,
        host_on_emulated=True,
    ),
    Area(
        "data parallelism, a scheduler per rank",
        "数据并行，每个 rank 一个调度器",
        ("dp_servers",),
        "tests/walks/test_servers.py",
        host=True,
    ),
    Area(
        "context and sequence parallelism",
        "上下文并行与序列并行",
        ("cp", "sp"),
        "tests/walks/test_dealt_out.py",
        host=True,
        host_on_emulated=True,
    ),
    Area(
        "prefill, decode and flex nodes",
        "Prefill、Decode 与 flex 节点",
        ("pd_prefill", "pd_decode", "pd_flex"),
        "tests/walks/test_two_nodes.py",
        host=True,
    ),
    Area(
        "multi-token prediction, memory decoding, SplitFuse",
        "多 token 预测、memory decoding、SplitFuse",
        ("mtp", "memory_decoding", "splitfuse"),
        "tests/walks/test_guessing.py",
        host=True,
        host_on_emulated=True,
    ),
    Area("lookahead decoding (`la`)", "lookahead（`la`）", ("la",), "tests/walks/test_guessing.py", host=True),
    Area("`n`, beams", "`n`、beam", ("n", "beam"), "tests/walks/test_beams.py", host=True),
    Area(
        "swap preemption", "换出抢占", ("swap",), "tests/walks/test_block_writes.py", host=True, host_on_emulated=True
    ),
    Area("LoRA adapters", "LoRA", ("lora",), "tests/walks/test_identity.py", host=True, host_on_emulated=True),
    Area("repair of a device", "设备修复", ("recovery",), "tests/walks/test_device_faults.py", host=True),
    Area(
        "NZ layout",
        "NZ 格式",
        ("nz",),
        "chaos/pairs.py",
        host=True,
        host_on_emulated=True,
        emulated="tests/npu/test_device_memory.py",
    ),
    Area("int8 KV cache", "int8 KV", ("int8_kv",), "chaos/mode_sweep.py", host=True, host_on_emulated=True),
    Area("sparse attention's index", "稀疏注意力的索引", ("sparse_index",), "tests/walks/test_identity.py"),
    Area(
        "staged copies by address, full memory, two devices",
        "按地址的暂存拷贝、显存耗尽、双设备",
        simulator="tests/unit/host/test_device_copies.py",
        emulated="tests/npu/test_device_memory.py",
        mooncake="tests/npu/test_acceptance.py",
    ),
    Area(
        "every hooked place, field and call",
        "每个挂接点、字段与调用",
        simulator="tests/host/test_activation.py",
        host=True,
    ),
    Area(
        "master and peers that die or hang, a pool that is full",
        "master 与对端退出或停顿、池满",
        simulator="tests/walks/test_fault_matrix.py",
        mooncake="tests/unit/pools/mooncake/test_faults.py",
    ),
    Area(
        "restarts, stores, SSD tier, an engine's end",
        "重启、store、SSD 层、引擎结束",
        simulator="tests/walks/test_restart.py",
        mooncake="tests/unit/pools/mooncake/test_leaving.py",
    ),
    Area("protocols `ascend` and `rdma`", "`ascend` 与 `rdma` 协议"),
)

HEADS = {
    "en": ("", "simulated host", "host's Python code", "torch_npu, emulated runtime", "real Mooncake (tcp)", "NPU"),
    "zh": (
        "",
        "模拟的 MindIE-LLM",
        "MindIE-LLM 的 Python 代码",
        "torch_npu，模拟运行时",
        "真实的 Mooncake（tcp）",
        "NPU",
    ),
}
YES = {"en": "yes", "zh": "是"}
NO = "-"


def table(lang):
    """The table as the README has it."""
    lines = ["| " + " | ".join(HEADS[lang]).lstrip() + " |", "| --- | --- | --- | --- | --- | --- |"]
    for area in AREAS:
        ran = (area.simulator, area.host, area.emulated or area.host_on_emulated, area.mooncake, "")
        cells = [area.en if lang == "en" else area.zh, *(YES[lang] if place else NO for place in ran)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
