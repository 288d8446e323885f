"""The forms of a report: each can be read by whom it is for, whatever the file is called."""

import json
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from tests.check_examples import MINIMAL, changed
from tests.unit.check.configs import WITH_POOL

NAMES = ["config.json", "a b.json", "配置.json", "a#b%20c.json", "x;y,z:1.json"]
# a reference by RFC 3986, appendix A: letters that stand for themselves, and escapes
REFERENCE = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
BROKEN = json.dumps(MINIMAL, indent=2).replace('"port": 1025', '"port"： 1025')


def run(*args, **kwargs):
    return CliRunner().invoke(main, ["check", "--no-env", "--lang", "en", *map(str, args)], **kwargs)


def sarif(*args, **kwargs):
    return json.loads(run("--format", "sarif", *args, **kwargs).stdout)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a broken file, a configuration with a wrong port, and one whose pool file is wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text(BROKEN, encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(changed({"S.port": 80}), indent=2), encoding="utf-8")
    pool = {"protocol": "tcp", "kv_pool": {"fence_timeout_s": "soon"}}
    (tmp_path / "pool.json").write_text(json.dumps(pool, indent=2), encoding="utf-8")
    named = changed(WITH_POOL | {"K.configPath": str(tmp_path / "pool.json")})
    (tmp_path / "pooling.json").write_text(json.dumps(named, indent=2), encoding="utf-8")
    return tmp_path


def results(log):
    return log["runs"][0]["results"]


def place(result):
    return result["locations"][0]["physicalLocation"]


@pytest.mark.parametrize("name", NAMES)
def test_sarif_names_a_file_by_a_valid_uri(folder, name):
    """Blanks, Chinese and # are escaped, and lead back to the file."""
    (folder / "config.json").rename(folder / name)
    for argument in (name, folder / name, f"./{name}"):
        for result in results(sarif(argument)):
            uri = place(result)["artifactLocation"]["uri"]
            assert REFERENCE.fullmatch(uri), uri
            assert (urlsplit(uri).scheme, urlsplit(uri).fragment, unquote(uri)) == ("", "", name)


def test_sarif_of_standard_input_names_a_uri():
    """A report says where a result is in any case."""
    found = results(sarif("-", input=BROKEN))
    assert {place(result)["artifactLocation"]["uri"] for result in found} == {"stdin"}


def test_sarif_marks_the_whole_value(folder):
    """From the first character to behind the last."""
    (found,) = [each for each in results(sarif("config.json")) if each["ruleId"] == "SC-03"]
    region = place(found)["region"]
    line = (folder / "config.json").read_text(encoding="utf-8").splitlines()[region["startLine"] - 1]
    assert region["endLine"] == region["startLine"]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == "80"


def test_sarif_describes_every_rule_it_uses(folder):
    """With a title, a reason, a level and a page to read."""
    log = sarif("broken.json", "config.json", "pooling.json")
    rules = {rule["id"]: rule for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    assert set(rules) == {result["ruleId"] for result in results(log)}
    for rule in rules.values():
        assert urlsplit(rule["helpUri"]).scheme == "https"
        assert REFERENCE.fullmatch(rule["helpUri"])
        assert rule["fullDescription"]["text"]


def test_sarif_fixes_repair_the_file(folder):
    """What an editor applies from the log is what --fix writes."""
    text = (folder / "broken.json").read_text(encoding="utf-8")
    fixes = [fix for result in results(sarif("broken.json")) for fix in result.get("fixes", ())]
    lines = text.splitlines(keepends=True)
    for fix in fixes:
        (change,) = fix["artifactChanges"]
        assert change["artifactLocation"]["uri"] == "broken.json"
        for each in change["replacements"]:
            region, row = each["deletedRegion"], each["deletedRegion"]["startLine"] - 1
            assert region["endLine"] == region["startLine"]
            before, behind = lines[row][: region["startColumn"] - 1], lines[row][region["endColumn"] - 1 :]
            lines[row] = before + each["insertedContent"]["text"] + behind
    assert len(fixes) == 1
    assert json.loads("".join(lines)) == MINIMAL


@pytest.mark.parametrize("source", [*NAMES, "-", "/nonexistent.json"])
def test_sarif_is_valid_by_the_official_schema(folder, source):
    """As OASIS publishes it; SARIF_SCHEMA names the file."""
    jsonschema = pytest.importorskip("jsonschema")
    if "SARIF_SCHEMA" not in os.environ:
        pytest.skip("SARIF_SCHEMA does not name the schema of SARIF 2.1.0 that OASIS publishes")
    schema = json.loads(Path(os.environ["SARIF_SCHEMA"]).read_text(encoding="utf-8"))
    if source in NAMES:
        (folder / "broken.json").rename(folder / source)
    log = sarif(source, input=BROKEN if source == "-" else None)
    assert results(log)
    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(log)] == []


def test_concise_has_one_line_for_each_finding(folder):
    """As editors and grep know it, and nothing else."""
    lines = run("--format", "concise", "config.json", "pooling.json").stdout.splitlines()
    assert all(
        re.fullmatch(r"(\w+\.json|/\S+):\d+:\d+: (error|warning|info) [A-Z]{2}-\d\d: .+", each) for each in lines
    )
    assert len([line for line in lines if "SC-03" in line]) == 1


def test_concise_says_nothing_of_a_good_file(folder):
    """No summary."""
    (folder / "config.json").write_text(json.dumps(MINIMAL), encoding="utf-8")
    (folder / "config.json").chmod(0o640)
    assert run("--format", "concise", "--quiet", "config.json").stdout == ""


def test_github_commands_have_place_and_title(folder):
    """One line each; what would end the command or a property is escaped."""
    (folder / "config.json").rename(folder / "x;y,z:1.json")
    lines = run("--format", "github", "x;y,z:1.json", "pooling.json").stdout.splitlines()
    assert all(re.fullmatch(r"::(error|warning|notice) file=[^:]+(,\w+=[^:]*)*::.+", line) for line in lines)
    (port,) = [line for line in lines if "SC-03" in line]
    assert port.startswith("::error file=x;y%2Cz%3A1.json,line=6,col=13,endLine=6,endColumn=15,title=SC-03 ")
    assert "%0Afix: " in port


def test_gitlab_issues_have_what_gitlab_demands(folder):
    """Fingerprints that are all different, and stay when a line is added above."""
    issues = json.loads(run("--format", "gitlab", "config.json", "pooling.json").stdout)
    for issue in issues:
        assert set(issue) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert issue["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert issue["location"]["lines"]["begin"] >= 1
        assert not issue["location"]["path"].startswith(("/", "./"))
    before = {issue["fingerprint"]: issue["location"] for issue in issues}
    assert len(before) == len(issues)
    path = folder / "config.json"
    path.write_text("\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    after = {
        i["fingerprint"]: i["location"] for i in json.loads(run("--format", "gitlab", path, "pooling.json").stdout)
    }
    assert after.keys() == before.keys()
    assert after != before


@pytest.mark.parametrize("form", ["concise", "json", "sarif", "github", "gitlab", "text"])
def test_a_finding_in_the_pool_file_is_headed_by_it(folder, form):
    """So that an editor jumps there: the file, its line and column."""
    text = run("--format", form, "pooling.json").stdout
    line = (folder / "pool.json").read_text(encoding="utf-8").splitlines()[3]
    column = line.index('"soon"') + 1
    expected = {
        "text": f"{folder}/pool.json:4:{column}: error SC-02",
        "concise": f"{folder}/pool.json:4:{column}: error SC-02",
        "json": f'"file": "{folder}/pool.json",\n      "path": "/kv_pool/fence_timeout_s",\n      "line": 4',
        "sarif": '"uri": "pool.json"\n',
        "github": f"::error file=pool.json,line=4,col={column},",
        "gitlab": '"path": "pool.json",',
    }
    assert expected[form] in text


def test_text_underlines_in_the_pool_file(folder):
    """Its line, not that of the configuration."""
    lines = run("pooling.json").stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "SC-02" in line)
    assert lines[at + 1].endswith('"fence_timeout_s": "soon"')
    assert lines[at + 2].strip() == "^" * len('"soon"')
    assert lines[at + 2].index("^") == lines[at + 1].index('"soon"')


def test_every_finding_says_whether_fix_repairs_it(folder):
    """The flag in JSON is what --fix does."""
    found = json.loads(run("--format", "json", "broken.json", "config.json").stdout)["findings"]
    assert {each["code"]: each["fixable"] for each in found if each["severity"] == "error"} == {
        "JS-01": True, "SC-03": False,
    }  # fmt: skip
