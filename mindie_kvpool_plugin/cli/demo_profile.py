"""What ``mindie-kvpool demo --profile`` shows: three services in simulated time, and what their users would see."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.simulator.cost import Profile
from mindie_kvpool_plugin.simulator.timed import Service, Timed, TimedRun
from mindie_kvpool_plugin.simulator.timed_service import SCALE, Asked

PROMPT_TOKENS = 8_192
"""Of which the head of the table tells how long it takes."""
SEQUENCES = 32

SECONDS = tuple(f"{what}_{share}" for what in ("first_token", "stall", "held") for share in ("p50", "p90", "p99"))
"""Rows: ``demo.timed.<name>`` is what one is called, ``<name>_s`` of the figures what it shows."""
TOKENS = ("prompt_tokens", "hbm_hit_tokens", "pool_hit_tokens", "computed_tokens")
RIGHT = ("corruptions", "wrong_answers", "leaked_blocks")

Found = Mapping[Service, Timed]


def report(config: TimedRun, asked: Asked, found: Found, console: Console, lang: Language) -> None:
    """Profile, table and verdict."""
    for line in _head(config, asked, lang):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(_table(found, lang))
    console.print(_verdict(found, lang), soft_wrap=True, highlight=False)


def is_correct(found: Found) -> bool:
    """Whether all services were right."""
    return all(timed.result.is_correct for timed in found.values())


def _head(config: TimedRun, asked: Asked, lang: Language) -> list[str]:
    costs, engine = config.costs, config.run.engine
    profile, block = costs.profile, engine.block_size * costs.scale
    stored = config.run.pool_blocks * block
    return [
        words("demo.timed.profile", lang, name=profile.name, model=profile.model, source=profile.source),
        words(
            "demo.timed.figures",
            lang,
            prompt=f"{PROMPT_TOKENS:,}",
            prefill=f"{_prefill_s(profile):.2f}",
            sequences=SEQUENCES,
            decode=f"{1000 * _decode_s(profile):.0f}",
            rate=f"{costs.link_bytes_per_s / 1e9:g}",
            loaded=f"{PROMPT_TOKENS * profile.kv_bytes / costs.link_bytes_per_s:.3f}",
        ),
        words(
            "demo.timed.memory",
            lang,
            device=f"{engine.hbm_blocks * block:,}",
            pool=f"{stored:,}",
            copies=f"{stored * profile.shards // profile.ranks:,}",
        ),
        words("demo.timed.trace" if asked.slower != 1.0 else "demo.timed.chats", lang, slower=f"{asked.slower:.1f}"),
    ]


def _prefill_s(profile: Profile) -> float:
    return profile.prefill_s(np.zeros(1, dtype=np.int64), np.array([PROMPT_TOKENS], dtype=np.int64))


def _decode_s(profile: Profile) -> float:
    return profile.decode_s(np.full(SEQUENCES, PROMPT_TOKENS, dtype=np.int64))


def _table(found: Found, lang: Language) -> Table:
    requests = next(iter(found.values())).result.requests
    table = Table(title=words("demo.timed.title", lang, requests=requests), title_justify="left")
    table.add_column("", no_wrap=True)
    for service in found:
        table.add_column(words(f"demo.timed.{service}", lang), justify="right")
    figures = {service: timed.seen.figures() for service, timed in found.items()}

    def add(name: str, cell: Callable[[Service], str]) -> None:
        table.add_row(words(name, lang), *(cell(service) for service in found))

    for row in SECONDS:
        add(f"demo.timed.{row}", lambda service, row=row: f"{figures[service][f'{row}_s']:.3f}")  # type: ignore[misc]
        if row.endswith("p99"):
            table.add_section()
    add("demo.timed.tokens_per_s", lambda service: f"{figures[service]['tokens_per_s']:,.1f}")
    add("demo.timed.prefill_share", lambda service: f"{100 * figures[service]['prefill_share']:.1f}")
    table.add_section()
    for field in TOKENS:
        add(f"demo.{field}", lambda service, field=field: f"{SCALE * getattr(found[service].result, field):,}")  # type: ignore[misc]
    table.add_section()
    for field in RIGHT:
        add(f"demo.{field}", lambda service, field=field: f"{getattr(found[service].result, field):,}")  # type: ignore[misc]
    table.caption = words("demo.timed.caption", lang)
    return table


def _verdict(found: Found, lang: Language) -> str:
    if not is_correct(found):
        return words("demo.wrong", lang)
    mean = {service: timed.seen.figures()["first_token_mean_s"] for service, timed in found.items()}
    return words("demo.timed.right", lang, **{service: f"{seconds:.3f}" for service, seconds in mean.items()})
