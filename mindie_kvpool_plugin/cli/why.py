"""``mindie-kvpool why``: which block ended a prompt's prefix, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.cli.asked import silence
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.why_join import Story, stories
from mindie_kvpool_plugin.cli.why_text import print_summary, story_lines
from mindie_kvpool_plugin.observability.questions import ask_all

Json = Mapping[str, Any]


@click.command(name="why", cls=SpeakingCommand)
@click.argument("request", metavar="[REQUEST_ID]", required=False)
@click.option("--last", type=click.IntRange(0, 1000), default=10, show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@lang_option
def command(request: str | None, last: int, form: str, lang: str) -> None:
    """Exit status: 0 told, 1 no such request, 2 nobody to ask."""
    chosen = chosen_language(lang)
    answers = _ask({"ask": "why", "request": request}, chosen)
    workers = [part for answer in answers for part in answer["parts"] if part["role"] == "worker"]
    found = stories(answers)
    if request is not None and not found:
        _end(_unknown(request, workers, chosen), 1)
    if form == "json":
        click.echo(json.dumps([_as_json(story) for story in found[-last:] if last or request], indent=2))
    elif request is not None:
        click.echo("\n\n".join("\n".join(story_lines(story, chosen)) for story in found))
    elif found:
        print_summary(found, last, chosen)
    else:
        click.echo(words("why.empty", chosen, workers=len(workers)))
    lost = sum(part["lost_records"] for part in workers)
    if lost:
        click.echo(words("why.lost", chosen, count=lost), err=True)


def _ask(question: Json, lang: Language) -> list[Json]:
    """The answers of all processes that remember prompts; the command ends when there is none."""
    replies = ask_all(question)
    for reply in replies:
        if reply.is_folder:
            click.echo(words("doctor.presence.folder", lang, reason=reply.trouble), err=True)
        elif reply.trouble is not None:
            click.echo(words("why.trouble", lang, place=reply.socket, trouble=silence(reply, lang)), err=True)
    answers = [reply.answer for reply in replies if isinstance(reply.answer, dict)]
    told: list[Json] = [answer for answer in answers if isinstance(answer.get("parts"), list)]
    if not any(part.get("role") == "worker" for answer in told for part in answer["parts"]):
        if not answers:
            _end(words("why.nobody", lang), 2)
        _end(words("why.off", lang, files=", ".join(_pool_files()) or words("why.the_pool_file", lang)), 2)
    return told


def _pool_files() -> list[str]:
    """Those of the processes that run."""
    answers = [reply.answer for reply in ask_all({"ask": "stats"}) if isinstance(reply.answer, dict)]
    parts = [part for answer in answers for part in answer.get("parts", []) if isinstance(part, dict)]
    return sorted({str(part["pool_file"]) for part in parts if part.get("pool_file")})


def _unknown(request: str, workers: Sequence[Json], lang: Language) -> str:
    everything = stories([reply.answer for reply in ask_all({"ask": "why"}) if isinstance(reply.answer, dict)])
    about = {
        "request": request,
        "kept": len(everything),
        "workers": len(workers),
        "capacity": max((part["capacity"] for part in workers), default=0),
        "example": everything[-1].said["request_id"] if everything else "endpoint_common_17",
    }
    return words("why.unknown_id", lang, **about)


def _as_json(story: Story) -> dict[str, Any]:
    return {
        **story.said,
        "cause": story.cause,
        "loaded": story.loaded,
        "tokens_computed": story.tokens_computed,
        "lookup": story.lookup,
        "ranks": [asdict(part) for part in story.parts],
    }


def _end(text: str, status: int) -> None:
    click.echo(text, err=True)
    sys.exit(status)
