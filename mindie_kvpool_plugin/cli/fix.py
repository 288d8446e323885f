"""``check --fix``: show the repair, keep the original, write the file with its mode; ``--diff`` only shows."""

from __future__ import annotations

import difflib
import shutil
import stat
import sys
from pathlib import Path

import click

from mindie_kvpool_plugin.check.messages import Language, Refused, reason, system_reason, words
from mindie_kvpool_plugin.check.repair import Repair, repair
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.cli.reporters.spots import STANDARD_OUTPUT
from mindie_kvpool_plugin.cli.written import write_whole

# a diff of a larger file is not read by anybody, and difflib is quadratic
MAX_DIFF_LINES = 20_000
STDOUT = Path(STANDARD_OUTPUT)


def fix(data: bytes, name: str, situation: Situation, output: Path | None, lang: Language, *, quiet: bool) -> bytes:
    """Repair ``data``, show what changes, write it, and return what is to be checked now.

    Exits with status 2 when the file cannot be written.
    """
    path = situation.config_path
    done = repair(data, name, situation)
    to_stderr = quiet or output == STDOUT or (path is None and output is None)
    _say_changes(done, data, name, lang, to_stderr=to_stderr)
    try:
        _write(done, data, path, output, lang)
    except OSError as error:
        click.echo(words("fix.cannot_write", lang, file=output or path, reason=system_reason(error)), err=True)
        sys.exit(2)
    except Refused as refused:
        click.echo(reason(refused, lang), err=True)
        sys.exit(2)
    return done.data


def show(data: bytes, name: str, situation: Situation, lang: Language, *, quiet: bool) -> bytes:
    """Show what ``fix`` would change, and change nothing; what is to be checked is the file as it is."""
    _say_changes(repair(data, name, situation), data, name, lang, to_stderr=quiet)
    return data


def _say_changes(done: Repair, data: bytes, name: str, lang: Language, *, to_stderr: bool) -> None:
    if done.data == data:
        click.echo(words("fix.nothing", lang), err=True)
    else:
        click.echo(diff(done, name), err=to_stderr)


def diff(done: Repair, name: str) -> str:
    """The repair as a unified diff."""
    before, after = done.before.splitlines(keepends=False), done.after.splitlines(keepends=False)
    if len(before) > MAX_DIFF_LINES:
        return f"--- {name}\n+++ {name}\n({', '.join(done.codes)})"
    lines = difflib.unified_diff(before, after, name, f"{name} (fixed)", n=1, lineterm="")
    return "\n".join(_coloured(line) for line in lines)


def _coloured(line: str) -> str:
    if line.startswith("+") and not line.startswith("+++"):
        return click.style(line, fg="green")
    if line.startswith("-") and not line.startswith("---"):
        return click.style(line, fg="red")
    return line


def _write(done: Repair, data: bytes, path: Path | None, output: Path | None, lang: Language) -> None:
    if output == STDOUT or (output is None and path is None):
        sys.stdout.buffer.write(done.data)
        sys.stdout.buffer.flush()
    elif output is not None:
        write_whole(output, done.data, _mode_of(path if path is not None else output))
        click.echo(words("fix.written", lang, file=output), err=True)
    elif path is not None and done.data != data:
        backup = _backup(path)
        write_whole(path, done.data)
        click.echo(words("fix.written", lang, file=path), err=True)
        click.echo(words("fix.backup", lang, file=backup), err=True)


def _backup(path: Path) -> Path:
    """A copy beside the file under a name that was free, with its mode and times."""
    for number in range(1000):
        backup = path.with_name(f"{path.name}.bak{number or ''}")
        try:
            backup.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            continue
        shutil.copy2(path, backup)
        return backup
    raise Refused("fix.backups", file=path)


def _mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o640
