"""ARCHITECTURE.md and CONTRIBUTING.md name files that exist; the READMEs count what may be skipped."""

import importlib
import re
import subprocess
from pathlib import Path

import pytest

from mindie_kvpool_plugin.cli.host_messages import KNOWN
from mindie_kvpool_plugin.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mindie_kvpool_plugin"
DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md")
# a file of another project, or one that a build makes
NOT_HERE = {"config.json", ".pth", "kv_pool.json"}
SUFFIXES = (".py", ".c", ".md", ".json", ".toml", ".jsonl")


def tracked():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


def code_spans(text):
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_named_in_a_document_exist(name):
    """Anything in backticks that looks like a file or a folder: from the top, the package, or anywhere by its name."""
    files = tracked()
    missing = []
    for span in code_spans((ROOT / name).read_text(encoding="utf-8")):
        path = re.sub(r"<[A-Za-z]+>", "*", span).rstrip("/")
        is_file = re.fullmatch(r"[\w.*/-]+", path) and path.endswith(SUFFIXES)
        is_folder = span.endswith("/") and re.fullmatch(r"[\w.*/-]+", path)
        if not (is_file or is_folder) or span in NOT_HERE:
            continue
        found = any(list(base.glob(path)) for base in (ROOT, PACKAGE))
        end = f"/{path}/" if is_folder else f"/{path}"
        if not found and not any(end in f"/{file}" if is_folder else f"/{file}".endswith(end) for file in files):
            missing.append(span)
    assert missing == []


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_readme_counts_the_tests_that_need_node(name):
    """So that nobody takes skipped for passed."""
    tests = (ROOT / "tests/unit/check/schema/test_editors.py").read_text(encoding="utf-8")
    (count,) = re.findall(r"`node`[^0-9`]{1,4}(\d+)", (ROOT / name).read_text(encoding="utf-8"))
    assert int(count) == len(re.findall(r"^def test_", tests, re.MULTILINE)) > 5


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_readme_counts_the_tests_that_need_an_npu(name):
    """The same."""
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests/npu").glob("test_*.py"))
    (count,) = re.findall(r"`npu`[^0-9`]{1,4}(\d+)", (ROOT / name).read_text(encoding="utf-8"))
    assert int(count) == len(re.findall(r"^def test_", tests, re.MULTILINE)) > 5


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_readme_counts_the_tests_that_need_prometheus(name):
    """Likewise."""
    tests = (ROOT / "tests/test_monitoring.py").read_text(encoding="utf-8")
    (count,) = re.findall(r"`prometheus`[^0-9`]{1,4}(\d+)", (ROOT / name).read_text(encoding="utf-8"))
    assert int(count) == tests.count("@pytest.mark.prometheus") > 1


def test_modules_of_the_layer_table_exist():
    """Each word of the table's last column is a file or folder of that layer."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|[^|]*\|([^|]*)\|$", text, re.MULTILINE)
    assert len(rows) >= 7
    missing = []
    for layers, modules in rows:
        folders = [PACKAGE / layer.strip("`") for layer in layers.split(", ")]
        for module in code_spans(modules):
            name = module.rstrip("/").removesuffix(".py")
            if not any(list(base.glob(f"{name}.py")) or list(base.glob(name)) for base in (*folders, PACKAGE)):
                missing.append(f"{layers}: {module}")
    assert missing == []


@pytest.mark.parametrize("name", ["docs/troubleshooting.md", "docs/troubleshooting.zh.md"])
def test_troubleshooting_has_every_message_that_explain_knows(name):
    """Who searches the page for a message finds it."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [each.words for each in KNOWN if each.words.strip() not in text] == []


def reading():
    """The pages that a user reads."""
    return sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", reading(), ids=lambda page: page.name)
def test_options_that_a_page_names_are_options_of_their_command(page):
    """`check --fix`, with or without mindie-kvpool before it; what stands behind -- is another program's."""
    text = page.read_text(encoding="utf-8")
    wrong = []
    for told in [*code_spans(text), *re.findall(r"^ *\$ (.*)$", text, re.MULTILINE)]:
        name, *words = told.partition(" -- ")[0].removeprefix("mindie-kvpool ").split() or [""]
        if name in COMMANDS:
            command = importlib.import_module(COMMANDS[name]).command
            known = {"--help", *(option for each in command.params for option in each.opts)}
            wrong += [told for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    assert wrong == []


def test_both_readmes_have_the_same_commands_sections_and_tables():
    """What one reader is told the other is told, too."""
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    for pattern in (r"^ *\$ ([^#\n]*[^#\s])", r"^(#+) ", r"^(\|)", r"^ *```(\w*)"):
        english, chinese = (re.findall(pattern, page.replace("--lang zh ", ""), re.MULTILINE) for page in pages)
        assert english == chinese
        assert len(english) > 5
