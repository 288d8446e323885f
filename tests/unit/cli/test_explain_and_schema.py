"""explain and schema: every code and every schema can be printed."""

import json

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.check.rules import all_codes
from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.cli.host_messages import KNOWN
from mindie_kvpool_plugin.cli.main import main


def run(*args):
    return CliRunner().invoke(main, args)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("code", sorted(all_codes()))
def test_explain_shows_reason_and_examples(code, lang):
    """Nothing is left as a key of the catalog."""
    result = run("explain", code.lower(), "--lang", lang)
    assert result.exit_code == 0
    assert all_codes()[code].right.splitlines()[0] in result.output
    assert f"{code}." not in result.output


def test_explain_lists_all_codes():
    """Without an argument; behind them the messages of MindIE-LLM."""
    listed, _, messages = run("explain").output.partition("\n\n")
    assert [line.split()[0] for line in listed.splitlines()] == sorted(all_codes())
    assert all(each.words.rstrip(": ") in messages for each in KNOWN)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("said", KNOWN, ids=[each.name for each in KNOWN])
def test_explain_knows_messages_of_the_host(said, lang):
    """As a log line has them, quoted or not; why they come and what to do."""
    line = f"2026-01-01 ERROR [generator.py:294] {said.words}something else"
    for asked in ([line], line.split(" ")):
        result = run("--lang", lang, "explain", *asked)
        assert result.exit_code == 0
        assert "mindie-kvpool" in result.output or "plugin_type" in result.output or "asyncWrite" in result.output
        assert f"said.{said.name}" not in result.output
        assert said.source in result.output


def test_unknown_code_and_schema_are_told():
    """With what there is, and exit 2."""
    assert run("explain", "XX-99").exit_code == 2
    assert run("schema", "../setup").exit_code == 2


@pytest.mark.parametrize("name", profiles.names())
def test_schema_prints_the_file(name):
    """As shipped."""
    assert json.loads(run("schema", name).output) == profiles.load(name)
    assert name in run("schema").output
