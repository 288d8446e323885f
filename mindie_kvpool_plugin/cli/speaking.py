"""Commands that speak the user's language: their help lies in the catalogs like every other text.

``help.<command>`` is a command's text, ``help.<command>.<parameter>`` that of an option, ``click.<name>`` what click
says of its own; a text of click that the catalogs do not have stays English.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import click

from mindie_kvpool_plugin.check.messages import LANGUAGES, Language, has_text, language, names_of, words

_NOTED = ContextVar("language", default="auto")
"""What the command that runs was asked for; also when its context is gone, and click tells why."""
_ASKED = "--lang"
CHOICES = ["en", "zh", "auto"]

lang_option = click.option(_ASKED, type=click.Choice(CHOICES), default="auto", show_default=True)
"""Of every command; ``chosen_language`` says what its value means."""


def chosen_language(lang: str) -> Language:
    """What the command was asked for, or the group before it, or what the locale says."""
    return language(lang if lang in LANGUAGES else _NOTED.get(), os.environ)


def _clicks_text(text: str) -> str:
    """In place of ``gettext.gettext``, which would ask the environment alone."""
    return words(names_of("click.").get(text, text), chosen_language("auto"))


def _clicks_plural(one: str, several: str, count: int) -> str:
    return _clicks_text(one if count == 1 else several)


for _module in (click.core, click.exceptions, click.parser, click.types):
    # click takes its words by these names
    vars(_module).update(_=_clicks_text, ngettext=_clicks_plural)


def _asked_for(args: Sequence[str]) -> str | None:
    """The language named anywhere in the arguments: ``--help`` is answered before they are parsed."""
    values = [after for before, after in itertools.pairwise(args) if before == _ASKED]
    values += [arg.partition("=")[2] for arg in args if arg.startswith(f"{_ASKED}=")]
    return next((value for value in values if value in LANGUAGES), None)


def _print_anything() -> None:
    """A terminal that cannot show Chinese gets escapes instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


class SpeakingCommand(click.Command):
    """A command whose help comes from the catalog; ``values`` are for placeholders in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        self.values: Mapping[str, str] = kwargs.pop("values", {})
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note the language first; help is printed from in here."""
        _print_anything()
        asked = _asked_for(args)
        if asked is not None or ctx.parent is None:
            _NOTED.set(asked or "auto")
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The usage line, with its heading in the user's language."""
        pieces = " ".join(self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, pieces, prefix=f"{words('help.usage', chosen_language('auto'))}: ")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What the command does."""
        self.help = words(f"help.{self.name}", chosen_language("auto"))
        super().format_help_text(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every option with its text."""
        lang = chosen_language("auto")
        records = []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option):
                parameter.help = self._text(str(parameter.name), lang)
                records.append(parameter.get_help_record(ctx))
        with formatter.section(words("help.options", lang)):
            formatter.write_dl([record for record in records if record is not None])

    def _text(self, parameter: str, lang: Language) -> str:
        """A text of its own, or one that all commands share."""
        own = f"help.{self.name}.{parameter}"
        shared = "help.option.help" if "help" in parameter else f"help.option.{parameter}"
        return words(own if has_text(own, lang) else shared, lang, **self.values)


def suggestion(close: str | None, lang: Language) -> str:
    """``; did you mean ...?``, or nothing."""
    return words("suggestion", lang, close=close) if close else ""
