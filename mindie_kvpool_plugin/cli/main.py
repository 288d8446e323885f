"""``mindie-kvpool``: the entry point.  A subcommand's module is imported only when it is called."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.check.messages import system_reason, words
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option, suggestion
from mindie_kvpool_plugin.options.typos import closest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "acceptance": "mindie_kvpool_plugin.cli.acceptance",
    "check": "mindie_kvpool_plugin.cli.check",
    "demo": "mindie_kvpool_plugin.cli.demo",
    "doctor": "mindie_kvpool_plugin.cli.doctor",
    "explain": "mindie_kvpool_plugin.cli.explain",
    "init": "mindie_kvpool_plugin.cli.init",
    "master": "mindie_kvpool_plugin.cli.master",
    "plan": "mindie_kvpool_plugin.cli.plan",
    "schema": "mindie_kvpool_plugin.cli.schema",
    "stats": "mindie_kvpool_plugin.cli.stats",
    "status": "mindie_kvpool_plugin.cli.status",
    "store": "mindie_kvpool_plugin.cli.store",
    "support": "mindie_kvpool_plugin.cli.support",
    "why": "mindie_kvpool_plugin.cli.why",
}
"""Command name -> module holding a click command named ``command``."""

EXTRAS = {"rich": "ops", "prometheus_client": "ops", "matplotlib": "ops", "torch": "demo"}
"""Missing package -> the extra that brings it and nothing that an NPU host has from elsewhere, but for the demo."""

GC_OBJECTS = 100_000
"""New objects between two collections.  What a command imports and reads is kept, so that collecting in between finds
nothing and takes an eighth of a check's time."""


class LazyGroup(SpeakingCommand, click.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, sorted."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; a missing optional library becomes one clear line."""
        del ctx
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        gc.set_threshold(GC_OBJECTS)
        try:
            command: click.Command = importlib.import_module(module).command
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("mindie_kvpool_plugin"):
                raise
            lang = chosen_language("auto")
            extra = EXTRAS.get(error.name or "")
            wanted = f"'mindie-kvpool-plugin[{extra}]'" if extra else str(error.name)
            click.echo(words("command.needs", lang, command=cmd_name, package=error.name, wanted=wanted), err=True)
            sys.exit(2)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command meant; a mistyped one is refused with what it may have been."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            lang = chosen_language("auto")
            meant = suggestion(closest(args[0], COMMANDS), lang)
            ctx.fail(words("command.unknown", lang, command=args[0], known=", ".join(COMMANDS)) + meant)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, then the commands with the first sentence of each, without importing one."""
        super().format_options(ctx, formatter)
        lang = chosen_language("auto")
        with formatter.section(words("help.commands", lang)):
            formatter.write_dl([(name, words(f"help.{name}.short", lang)) for name in COMMANDS])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As click does; help is printed from in here."""
        with _ending_unread():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does."""
        with _ending_unread():
            return super().invoke(ctx)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run what is asked for; a full disk behind standard output, or the like, is one line and exit status 2."""
        _open_what_is_closed()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if not error.errno:
                raise
            lang = chosen_language("auto")
            key = "command.os_error_at" if error.filename else "command.os_error"
            _last_words(words(key, lang, file=error.filename, reason=system_reason(error)))
            os._exit(2)  # an orderly end would write to standard output once more

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands and options, without importing a command."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  # only when a shell asks

        lang = chosen_language("auto")
        found = [
            CompletionItem(name, help=words(f"help.{name}.short", lang))
            for name in COMMANDS
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _open_what_is_closed() -> None:
    """Give the standard streams that this process was started without a place, also for the programs it starts.

    Else the next file or socket that is opened gets such a stream's number, and what is printed goes there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for as long as we run
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


@contextlib.contextmanager
def _ending_unread() -> Iterator[None]:
    """Exit status 2 where nobody reads standard output any more; click's own, 1, is what ``check`` says of errors."""
    try:
        yield
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # what is still to be flushed goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)


def _last_words(text: str) -> None:
    """On standard error, if it can take them."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(text, err=True)


@click.group(name="mindie-kvpool", cls=LazyGroup)
@lang_option
@click.version_option(__version__, prog_name="mindie-kvpool")
def main(lang: str) -> None:
    """Entry point of every subcommand; ``--lang`` here holds for it."""
    del lang


if __name__ == "__main__":
    main(prog_name="mindie-kvpool")
