"""What ``mindie-kvpool why`` prints for people: one prompt's walk in words, and a summary of many as tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.cli.why_join import Part, Story
from mindie_kvpool_plugin.observability import causes

SHORTEST_S = 0.0001
PIPE_COLUMNS = 160
"""Where no terminal says how wide it is."""


def story_lines(story: Story, lang: Language) -> Iterator[str]:
    """One prompt, block by block, and what to do."""
    said = story.said
    heading = {"request": said["request_id"], "sequence": said["sequence_id"], "time": _clock(said["at_s"], date=True)}
    yield click.style(words("why.story.request", lang, **heading), bold=True)
    rows = list(_facts(story, lang))
    width = max(len(name) for name, _ in rows)
    yield from (f"  {name:<{width}}  {value}" for name, value in rows)
    yield ""
    yield click.style(_ending(story, lang), bold=True)
    params = _params(story, lang)
    yield words(f"why.{story.cause}.why", lang, **params)
    yield f"{words('explain.todo', lang)}: {words(f'why.{story.cause}.todo', lang, **params)}"


def _facts(story: Story, lang: Language) -> Iterator[tuple[str, str]]:
    said = story.said
    tokens, size = int(said["prompt_tokens"]), story.block_size
    key = "prompt" if said["is_whole"] else "chunk"
    rest = {"tokens": tokens, "blocks": said["full_blocks"], "size": size, "rest": tokens - said["full_blocks"] * size}
    yield words("why.story.prompt", lang), words(f"why.story.{key}_value", lang, **rest)
    yield words("why.story.computed", lang), words("why.story.blocks", lang, count=said["computed"])
    promised = int(said["promised"]) - int(said["computed"])
    yield words("why.story.promised", lang), words("why.story.more_blocks", lang, count=promised)
    yield words("why.story.loaded", lang), words("why.story.blocks", lang, count=story.loaded)
    computed = {"blocks": max(0, said["full_blocks"] - said["reused"]), "tokens": story.tokens_computed}
    yield words("why.story.recomputed", lang), words("why.story.recomputed_value", lang, **computed)
    yield words("why.story.lookup", lang), _lookup(story, lang)
    if len(story.parts) > 1:
        yield from (_rank(part, lang) for part in story.parts)


def _lookup(story: Story, lang: Language) -> str:
    lookup = story.lookup
    if lookup is None:
        return words("why.story.no_lookup", lang)
    outcome = words(f"why.outcome.{lookup['outcome']}", lang)
    about = {"asked": lookup["asked"], "found": lookup["found"], "took": _span(lookup["took_s"]), "outcome": outcome}
    return words("why.story.lookup_value", lang, **about)


def _rank(part: Part, lang: Language) -> tuple[str, str]:
    cause = part.said["cause"]
    name = words("why.story.rank", lang, rank=part.identity.get("rank", 0))
    told = f"{cause} ({words(f'why.{cause}.title', lang)})"
    return name, words("why.story.rank_value", lang, arrived=part.said["arrived"], cause=told)


def _ending(story: Story, lang: Language) -> str:
    block, size = int(story.said["reused"]), story.block_size
    cause = f"{story.cause} ({words(f'why.{story.cause}.title', lang)})"
    if story.cause in causes.NOTHING_MISSING:
        return f"{words('why.story.no_block', lang)}: {cause}"
    place = {"block": block, "first": block * size, "last": (block + 1) * size - 1}
    return f"{words('why.story.block', lang, **place)}: {cause}"


def _params(story: Story, lang: Language) -> dict[str, Any]:
    facts = story.said["facts"]
    known: dict[str, Any] = {"arrived": story.said["arrived"]}
    if "ago_s" in facts:
        known["ago"] = _span(facts["ago_s"])
    if "since_s" in facts:
        known["since"] = _clock(facts["since_s"], date=True)
    if "adapter" in facts:
        known["adapter"] = facts["adapter"] or words("why.no_adapter", lang)
    if facts.get("is_former"):
        known["adapter"] = words("why.former_adapter", lang, adapter=facts["adapter"])
    if story.lookup is not None:
        known["took"] = _span(story.lookup["took_s"])
    return known | {name: facts[name] for name in ("namespace", "fingerprint") if name in facts}


def print_summary(found: Sequence[Story], last: int, lang: Language) -> None:
    """Causes over all prompts, then the last of these."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    click.echo(_title(found, lang))
    console.print(_cause_table(found, lang))
    if last:
        console.print(_request_table(found[-last:], lang))
    click.echo(words("why.table.more", lang))


def _title(found: Sequence[Story], lang: Language) -> str:
    tokens = sum(int(story.said["prompt_tokens"]) for story in found)
    hbm = sum(int(story.said["computed"]) * story.block_size for story in found)
    pool = sum(story.loaded * story.block_size for story in found)
    shares = {"hbm": _share(hbm, tokens), "pool": _share(pool, tokens), "rest": _share(tokens - hbm - pool, tokens)}
    return words("why.table.title", lang, prompts=len(found), tokens=f"{tokens:,}", **shares)


def _cause_table(found: Sequence[Story], lang: Language) -> Table:
    sums: dict[str, list[int]] = {}
    for story in found:
        entry = sums.setdefault(story.cause, [0, 0])
        entry[0] += 1
        entry[1] += story.tokens_computed
    computed = sum(tokens for _, tokens in sums.values())
    table = _table(lang, "cause", "prompts>", "tokens>", "share>", "meaning")
    for cause, (prompts, tokens) in sorted(sums.items(), key=lambda item: -item[1][1]):
        share = f"{_share(tokens, computed)} %"
        table.add_row(cause, str(prompts), f"{tokens:,}", share, words(f"why.{cause}.title", lang))
    return table


def _request_table(found: Sequence[Story], lang: Language) -> Table:
    table = _table(
        lang, "request", "time", "prompt>", "computed>", "promised>", "loaded>", "blocks>", "ended>", "cause"
    )
    for story in found:
        said = story.said
        ended = "-" if story.cause in causes.NOTHING_MISSING else str(said["reused"])
        promised = str(said["promised"] - said["computed"])
        numbers = f"{said['prompt_tokens']:,}", str(said["computed"]), promised, str(story.loaded)
        table.add_row(said["request_id"], _clock(said["at_s"]), *numbers, str(said["full_blocks"]), ended, story.cause)
    return table


def _table(lang: Language, *columns: str) -> Table:
    """A column per name; ``>`` behind it: numbers."""
    table = Table()
    for column in columns:
        name = words(f"why.table.{column.rstrip('>')}", lang)
        table.add_column(name, justify="right" if column.endswith(">") else "left", overflow="fold")
    return table


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "0.0"


def _clock(at_s: float, date: bool = False) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S", time.localtime(at_s))


def _span(seconds: float) -> str:
    """A span of time, in the unit a reader would take."""
    if seconds < SHORTEST_S:
        return "< 0.1 ms"
    for limit, unit_s, unit in ((1.0, 0.001, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if seconds < limit:
            return f"{seconds / unit_s:.{int(seconds < 10 * unit_s)}f} {unit}"
    return f"{seconds / 3600:.1f} h"
