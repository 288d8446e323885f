"""``mindie-kvpool check``: what is wrong in config.json, where, and how to fix it."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.messages import Language, language, words
from mindie_kvpool_plugin.check.pipeline import CheckReport, check_bytes, read_limited
from mindie_kvpool_plugin.check.schema.profiles import DEFAULT_HOST_VERSION, HOST_VERSIONS
from mindie_kvpool_plugin.check.situation import Situation, default_config, find_home
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.check.text.load import MAX_BYTES
from mindie_kvpool_plugin.cli.fix import fix
from mindie_kvpool_plugin.cli.reporters import REPORTERS

STANDARD_INPUT = "-"


@click.command(name="check", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False, type=click.Path(path_type=str))
@click.option("--pool-config", type=click.Path(path_type=Path), help="Pool file, instead of kvPoolConfig.configPath.")
@click.option(
    "--host-version",
    type=click.Choice(list(HOST_VERSIONS)),
    default=DEFAULT_HOST_VERSION,
    show_default=True,
    help="MindIE-LLM release.",
)
@click.option("--env", "overrides", multiple=True, metavar="KEY=VALUE", help="A variable the service will see.")
@click.option("--no-env", is_flag=True, help="Do not judge this shell's environment.")
@click.option("--dies", type=click.IntRange(min=1), help="NPU dies in the pool, all servers together.")
@click.option("--scale-out", is_flag=True, help="The pool may grow while it runs.")
@click.option("--model-config", type=click.Path(path_type=Path), help="config.json of the weights.")
@click.option("--no-follow", is_flag=True, help="Do not look at files the configuration names.")
@click.option("--format", "form", type=click.Choice(list(REPORTERS)), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh", "auto"]), default="auto", show_default=True)
@click.option("--strict", is_flag=True, help="Exit 1 on warnings too.")
@click.option("--fix", "wants_fix", is_flag=True, help="Repair what is unambiguous; keeps a backup beside the file.")
@click.option("--output", type=click.Path(path_type=Path), help="With --fix: write here instead.")
def command(
    *,
    config: str | None,
    pool_config: Path | None,
    host_version: str,
    overrides: tuple[str, ...],
    no_env: bool,
    dies: int | None,
    scale_out: bool,
    model_config: Path | None,
    no_follow: bool,
    form: str,
    lang: str,
    strict: bool,
    wants_fix: bool,
    output: Path | None,
) -> None:
    """Check CONFIG, a MindIE-LLM config.json, before the weights load.

    CONFIG is a file, or - for standard input; without it, the file the service would read.
    Exit status: 0 no errors, 1 errors, 2 could not check.
    """
    gc.disable()  # a short process; collecting while a hostile file is read would double its time
    _print_anything()
    if output is not None and not wants_fix:
        raise click.UsageError("--output needs --fix")
    chosen = language(lang, os.environ)
    env = _environment(overrides, no_env=no_env)
    path = _config_path(config, env)
    if path is None and config != STANDARD_INPUT:
        click.echo(words("check.no_default", chosen), err=True)
        sys.exit(2)
    situation = Situation(
        host_version=host_version,
        env=env,
        is_env_known=not no_env,
        dies=dies,
        scale_out=scale_out,
        follow=not no_follow,
        config_path=path,
        home=find_home(env, path),
        weight_config=model_config,
        pool_file=pool_config,
    )
    name = str(path) if path is not None else "<stdin>"
    data = _read(path, name, situation, form, chosen)
    if wants_fix:
        data = fix(data, name, situation, output, chosen, quiet=form != "text")
    result = check_bytes(data, name, situation)
    click.echo(REPORTERS[form](result, chosen), err=wants_fix and path is None and output is None)
    failing = {"error", "warning"} if strict else {"error"}
    sys.exit(1 if result.verdict in failing else 0)


def _print_anything() -> None:
    """A terminal that cannot show Chinese gets escapes instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _environment(overrides: tuple[str, ...], *, no_env: bool) -> dict[str, str]:
    env = {} if no_env else dict(os.environ)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{override!r} is not KEY=VALUE", param_hint="--env")
        env[key] = value
    return env


def _config_path(config: str | None, env: dict[str, str]) -> Path | None:
    if config == STANDARD_INPUT:
        return None
    return Path(config) if config is not None else default_config(env)


def _read(path: Path | None, name: str, situation: Situation, form: str, lang: Language) -> bytes:
    """The bytes to check; a report and exit 2 when there are none."""
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1) if path is None else read_limited(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        finding = codes.CANNOT_READ.found(params={"file": name, "reason": reason})
        click.echo(REPORTERS[form](CheckReport(Document(name, ""), situation, [finding]), lang), err=form == "text")
        sys.exit(2)
