"""``mindie-kvpool``: the entry point.  A subcommand's module is imported only when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from mindie_kvpool_plugin import __version__

COMMANDS = {
    "check": "mindie_kvpool_plugin.cli.check",
    "explain": "mindie_kvpool_plugin.cli.explain",
    "schema": "mindie_kvpool_plugin.cli.schema",
    "status": "mindie_kvpool_plugin.cli.status",
    "support": "mindie_kvpool_plugin.cli.support",
    "demo": "mindie_kvpool_plugin.cli.demo",
}
"""Command name -> module holding a click command named ``command``."""


class LazyGroup(click.Group):
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
        try:
            command: click.Command = importlib.import_module(module).command
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("mindie_kvpool_plugin"):
                raise
            click.echo(
                f"mindie-kvpool {cmd_name} needs the Python package {error.name}; "
                "install it with: pip install 'mindie-kvpool-plugin[demo,mooncake]'",
                err=True,
            )
            sys.exit(2)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mindie-kvpool")
def main() -> None:
    """KV-cache pooling for MindIE-LLM."""


if __name__ == "__main__":
    main()
