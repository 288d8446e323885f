"""``mindie-kvpool plan``: how large a pool should be, what to write into its file, and whether it is worth it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mindie_kvpool_plugin.check.messages import Language, Refused, words
from mindie_kvpool_plugin.check.rules.layout import Layout
from mindie_kvpool_plugin.cli.numbers import Number, Size
from mindie_kvpool_plugin.cli.refusing import one_line_refusals, refuse
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.targets import Named, find_config
from mindie_kvpool_plugin.cli.written import expect_folder, named
from mindie_kvpool_plugin.memory_room import memory_room
from mindie_kvpool_plugin.options.mooncake import TooLittleMemoryError
from mindie_kvpool_plugin.options.sizes import size_text
from mindie_kvpool_plugin.planning import curve as curves
from mindie_kvpool_plugin.planning import instance as instances
from mindie_kvpool_plugin.planning import plot as plots
from mindie_kvpool_plugin.planning.instance import Instance
from mindie_kvpool_plugin.planning.plan import Plan, as_json
from mindie_kvpool_plugin.planning.pool_side import EVICTIONS, PoolRules
from mindie_kvpool_plugin.planning.request_lines import DEFAULT_BYTES_PER_TOKEN, Words, with_bytes, with_tokenizer
from mindie_kvpool_plugin.planning.sizes import Sizes, sizes
from mindie_kvpool_plugin.planning.traffic_file import convert, read_traffic
from mindie_kvpool_plugin.planning.worth import judge

Asked = Mapping[str, Any]
"""The options as the user gave them."""


class _Counts(click.ParamType):  # type: ignore[type-arg]
    name = "N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Whole numbers of at least 1, comma separated."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() and 0 < int(part) < 2**40 for part in parts):
            self.fail(words("plan.no_list", chosen_language("auto"), value=value), param, ctx)
        return tuple(int(part) for part in parts)


_FILE = click.Path(dir_okay=False, readable=False, path_type=Path)
_COUNT = click.IntRange(min=1)
_BLOCK = click.IntRange(1, 512)  # the host takes 128 at most; a trace tells no smaller unit than 512


@click.command(
    name="plan",
    cls=SpeakingCommand,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    values={"endings": ", ".join(plots.ENDINGS)},
)
@click.argument("config", required=False, metavar="[CONFIG]", type=Named(path_type=Path))
@click.option("--model-config", metavar="FILE", type=_FILE)
@click.option("--pool-config", metavar="FILE", type=_FILE)
@click.option("--tp", type=_COUNT)
@click.option("--dp", type=_COUNT)
@click.option("--cp", type=_COUNT)
@click.option("--sp", type=_COUNT)
@click.option("--ranks-per-node", type=_COUNT)
@click.option("--block-size", type=_BLOCK)
@click.option("--mtp", is_flag=True)
@click.option("--nz", is_flag=True)
@click.option("--nodes", type=_COUNT)
@click.option("--dram", type=Size())
@click.option("--ssd", type=Size(), default=0)
@click.option("--store", is_flag=True)
@click.option("--hbm-blocks", type=_COUNT)
@click.option("--hbm-memory", type=Size())
@click.option("--trace", metavar="FILE", type=_FILE)
@click.option("--requests", type=_COUNT)
@click.option("--concurrency", type=_COUNT, default=1)
@click.option("--tokenizer", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--bytes-per-token", type=Number(min=0.1, max=100), default=DEFAULT_BYTES_PER_TOKEN)
@click.option("--save-trace", metavar="FILE", type=_FILE)
@click.option("--pool-blocks", type=_Counts())
@click.option("--disk-blocks", type=_COUNT)
@click.option("--eviction", type=click.Choice(EVICTIONS), default=EVICTIONS[0])
@click.option("--watermark", type=Number(min=0.01, max=1), default=PoolRules().watermark)
@click.option("--eviction-ratio", type=Number(min=0, max=1), default=PoolRules().ratio)
@click.option("--spill-at", type=click.Choice(["end", "overwrite"]), default="end")
@click.option("--prefill-rate", metavar="TOKENS/S", type=Number(min=0, min_open=True))
@click.option("--rank-rate", metavar="SIZE/S", type=Size())
@click.option("--plot", metavar="FILE", type=_FILE)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@lang_option
def command(*, lang: str, form: str, **asked: Any) -> None:
    """Exit status: 0 planned, 2 it cannot be."""
    chosen = chosen_language(lang)
    with one_line_refusals("plan", chosen):
        for file in (asked["plot"], asked["save_trace"]):
            expect_folder(file)
        if asked["plot"] is not None:
            plots.expect(asked["plot"])
        if asked["save_trace"] is not None:
            click.echo(_converted(asked, chosen))
            return
        plan = _plan(asked)
        if asked["plot"] is not None and plan.curve is not None:
            with named(asked["plot"]):
                # in English: the fonts that matplotlib brings have no Chinese
                plots.write(plan.curve, asked["plot"], plan.planned, lambda name: words(name, "en"))
    if form == "json":
        click.echo(as_json(plan))
    else:
        _show(plan, chosen)


def _show(plan: Plan, lang: Language) -> None:
    """As tables, whose package figures alone do not need."""
    try:
        from mindie_kvpool_plugin.cli import plan_report  # noqa: PLC0415
    except ModuleNotFoundError as error:
        refuse("plan", words("plan.needs", lang, package=(error.name or "").partition(".")[0]))
    plan_report.show(plan, lang)


def _converted(asked: Asked, lang: Language) -> str:
    if asked["trace"] is None:
        raise Refused("plan.save_needs_trace")
    with named(asked["save_trace"]):
        count = convert(asked["trace"], asked["save_trace"], _words_of(asked), asked["requests"])
    return words("plan.converted", lang, count=count, file=asked["save_trace"])


def _words_of(asked: Asked) -> Words:
    return with_tokenizer(asked["tokenizer"]) if asked["tokenizer"] else with_bytes(asked["bytes_per_token"])


def _plan(asked: Asked) -> Plan:
    instance = _instance(asked)
    if instance is None and asked["trace"] is None:
        raise Refused("plan.nothing")
    found, memory_source = _sizes(asked, instance)
    device_blocks, source = _device(asked, instance)
    rules = PoolRules(asked["eviction"], asked["watermark"], asked["eviction_ratio"], asked["spill_at"] == "overwrite")
    plan = Plan(instance, found, memory_source, device_blocks, source, None, None, None, (), rules)
    if asked["plot"] is not None and asked["trace"] is None:
        raise Refused("plan.plot_needs_trace")
    return plan if asked["trace"] is None else _with_curve(plan, asked)


def _instance(asked: Asked) -> Instance | None:
    shape = {"draft_layers": int(asked["mtp"]), "is_nz": asked["nz"]}
    layout = {key: asked[key] for key in ("tp", "dp", "cp", "sp", "ranks_per_node") if asked[key] is not None}
    size = asked["block_size"]
    if asked["config"] is not None:
        found = instances.from_config(
            find_config(asked["config"]), asked["model_config"], asked["pool_config"], shape, layout
        )
        return replace(found, block_size=size or found.block_size)
    if asked["model_config"] is None:
        return None
    own = instances.fitted(Layout(**{"ranks_per_node": 0, **layout}))
    return instances.from_options(asked["model_config"], own, size or instances.HOST_BLOCK_TOKENS, shape)


def _sizes(asked: Asked, instance: Instance | None) -> tuple[Sizes | None, str]:
    """What fits, and the name of the text that says where the memory's size is from."""
    if instance is None:
        if asked["dram"] or asked["ssd"] or asked["store"]:
            raise Refused("plan.no_model")
        return None, ""
    dram, source = asked["dram"], ""
    if dram is None and instance.pool_memory is not None:
        source = "plan.memory_of_file"
    elif dram is None:
        available = memory_room()
        if available is None:
            raise Refused("plan.no_memory")
        dram, source = available // 2, "plan.suggested"
    nodes = asked["nodes"] or instance.layout.nodes
    if nodes % instance.layout.nodes:
        raise Refused("plan.nodes_of_instances", nodes=nodes, each=instance.layout.nodes)
    store = asked["store"] or instance.in_stores
    try:
        return sizes(instance, nodes, dram, asked["ssd"], store=store), source
    except TooLittleMemoryError as error:
        raise Refused("plan.little_memory", needed=size_text(error.needed)) from error


def _device(asked: Asked, instance: Instance | None) -> tuple[int | None, str]:
    """Blocks of sequences that a group's devices hold, and where that is from."""
    if asked["hbm_blocks"] is not None:
        blocks = asked["hbm_blocks"]
        return (instance.group_blocks(blocks) if instance else blocks), ""
    if instance is None:
        return None, ""
    memory = asked["hbm_memory"] or instance.device_memory
    if memory is None:
        return None, ""
    source = "plan.hbm_memory" if asked["hbm_memory"] else "plan.hbm_npu_mem_size"
    return instance.group_blocks(memory // instance.rank_block_bytes), source


def _with_curve(plan: Plan, asked: Asked) -> Plan:
    if plan.device_blocks is None:
        raise Refused("plan.no_hbm")
    instance, found = plan.instance, plan.sizes
    block_size = instance.block_size if instance else asked["block_size"] or instances.HOST_BLOCK_TOKENS
    traffic = read_traffic(asked["trace"], block_size, _words_of(asked), asked["requests"])
    planned = found.pool_blocks if found is not None else None
    per_unit = traffic.unit_tokens / block_size
    wanted = [*(asked["pool_blocks"] or ()), *([planned] if planned else [])]
    steps = sorted(set(wanted)) if asked["pool_blocks"] else curves.ladder(int(traffic.distinct * per_unit), wanted)
    if not steps:
        raise Refused("plan.no_full_block", file=asked["trace"], tokens=traffic.unit_tokens)
    curve = curves.curve(
        traffic,
        plan.device_blocks,
        steps,
        block_size=block_size,
        disk_blocks=asked["disk_blocks"] or (found.disk_blocks if found is not None else 0),
        concurrency=asked["concurrency"],
        groups=_groups(instance, found),
        rules=plan.rules,
    )
    worth = None
    if instance is not None and planned:
        worth = judge(instance, curve.at(planned), asked["prefill_rate"], asked["rank_rate"])
    return replace(plan, curve=curve, planned=planned, worth=worth, remarks=traffic.remarks)


def _groups(instance: Instance | None, found: Sizes | None) -> int:
    """Schedulers with a device of their own: data-parallel groups of all instances."""
    if instance is None or found is None:
        return 1
    return instance.layout.dp * instance.instances * (found.nodes // instance.layout.nodes)
