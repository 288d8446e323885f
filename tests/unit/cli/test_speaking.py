"""The command around its commands: help in two languages, suggestions, completion, and how it is started."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.check.messages import LANGUAGES, has_text
from mindie_kvpool_plugin.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "mindie_kvpool_plugin"
SPEAKING = [
    *sorted((PACKAGE / "cli").rglob("*.py")),
    *sorted((PACKAGE / "planning").glob("*.py")),
    PACKAGE / "simulator" / "trace.py",
    PACKAGE / "simulator" / "faults.py",
]
"""What only commands run: nothing of it is said in English alone."""
CATALOGUED = {"words", "Refused", "TraceError"}
SAID = {"ConfigError", "PoolError", "KvPoolError", "UsageError", "BadParameter", "fail", "echo", "print", "refuse"}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def run(*args, **kwargs):
    return CliRunner().invoke(main, args, prog_name="mindie-kvpool", **kwargs)


def texts_of(argument):
    """(text, whether it is whole) of what is written as an argument: both sides of a choice, parts of an f-string."""
    if isinstance(argument, ast.IfExp):
        return [*texts_of(argument.body), *texts_of(argument.orelse)]
    if isinstance(argument, ast.JoinedStr):
        return [(str(each.value), False) for each in argument.values if isinstance(each, ast.Constant)]
    is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return [(argument.value, True)] if is_text else []


def calls(path):
    """(name, arguments, place) of each call in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node.args, f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("path", SPEAKING, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_a_command_says_is_in_the_catalogs(path):
    """A sentence in the code would be English under --lang zh; a name without a sentence would be shown as it is."""
    texts = json.loads((PACKAGE / "locale" / "zh.json").read_text(encoding="utf-8"))
    for name, arguments, place in calls(path):
        if name in CATALOGUED:
            for text, is_whole in texts_of(arguments[0]):
                known = text in texts if is_whole else any(text in key for key in texts)
                assert known, f"{place}: no Chinese form of {text}"
        if name in SAID:
            said = " ".join(text for argument in arguments for text, _ in texts_of(argument))
            assert not re.search(r"[a-z]{2,} [a-z]{2,}", said), f"{place}: in English only: {said}"


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_option_is_explained_in_both_languages(name, lang):
    """No key of the catalog is left, and no text in the other language."""
    text = run(
        *filter(None, [name]), "--help", *([] if name == "demo" else ["--lang", lang]), env={"LANG": lang}
    ).output
    assert "help." not in text
    assert bool(CHINESE.search(text)) is (lang == "zh")
    command = main.get_command(None, name) if name else main
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in text
    assert ("选项:" in text) is (lang == "zh")


@pytest.mark.parametrize("args", [["--lang", "zh", "check", "-h"], ["check", "-h", "--lang=zh"], ["--lang=zh", "-h"]])
def test_language_may_be_asked_for_anywhere(args):
    """Before the command or behind --help."""
    assert "用法: mindie-kvpool" in run(*args).output


def test_language_of_the_group_holds_for_the_command():
    """Unless it has one of its own."""
    assert "缺少" in run("--lang", "zh", "explain", "SC-01").output
    assert "缺少" not in run("--lang", "zh", "explain", "SC-01", "--lang", "en").output


@pytest.mark.parametrize(
    "asks", [{"args": ("--lang", "zh")}, {"env": {"LANG": "zh_CN.UTF-8"}}], ids=["option", "locale"]
)
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("check", "--no-such"), "错误：没有选项 '--no-such'。"),
        (("check", "--dif"), "（是否想写其中之一：'--dies', '--diff', '--fix'？）"),
        (("--no-such",), "错误：没有选项 '--no-such'。"),
        (("store",), "错误：缺少参数 'CONFIG'"),
        (("schema", "one", "two"), "错误：多余的参数：two"),
        (("check", "--dies", "0"), "错误：'--dies' 的值无效：0 超出范围 x>=1。"),
        (("check", "--dies", "many"), "错误：'--dies' 的值无效：'many' 不是有效的数（integer range）。"),
        (("demo", "--load", "nan"), "'--load' 的值无效："),
        (("check", "--format", "xml"), "'xml' 不在可选值之中："),
        (("check", "--format"), "错误：选项 '--format' 需要一个值。"),
        (("check", "--fix=1"), "错误：选项 '--fix' 不带值。"),
        (("check", "--env", "A"), "错误：--env 的值无效：'A' 不是 KEY=VALUE 的形式"),
        (("check", "--select", "XX", "x.json"), "错误：--select 的值无效：没有以 XX 开头的代码"),
        (("check", "--output", "x", "y"), "错误：--output 需要同时给出 --fix 与一个文件"),
        (("status", "--worker", "/no/such"), "错误：'--worker' 的值无效：File '/no/such' 不存在。"),
        (("chek",), "是否想写 check？"),
    ],
)
def test_what_click_refuses_is_told_in_chinese(args, said, asks):
    """Usage, the way to the help and the error itself, wherever the language was asked for."""
    result = run(*asks.get("args", ()), *args, env={"LANG": "C", **asks.get("env", {})})
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.startswith(
        ("用法: mindie-kvpool ", "错误：")
    )  # click tells no usage of an option without value
    assert re.findall(r"\b(?:Usage|Error|Try|for|is|not|the)\b", result.stderr) == []


def test_a_language_ends_with_its_command():
    """The next one in the same process is asked anew."""
    assert "错误" in run("check", "--no-such", "--lang", "zh").stderr
    assert "Error: No such option" in run("check", "--no-such", env={"LANG": "C"}).stderr


def test_help_imports_no_command():
    """A laptop without torch can read it, and it is quick."""
    code = (
        "import sys\nfrom mindie_kvpool_plugin.cli.main import main\n"
        "try:\n main(['--help'])\nexcept SystemExit:\n pass\n"
        "print([m for m in ('torch', 'rich', 'jsonschema', 'lark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_package_can_be_run_as_a_module():
    """Where the script is not on the path."""
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == f"mindie-kvpool, version {__version__}"


@pytest.mark.parametrize(("typed", "meant"), [("chek", "check"), ("Explain", "explain"), ("sheme", "schema")])
def test_a_mistyped_command_gets_a_suggestion(typed, meant):
    """And the list of all."""
    result = run(typed, "--lang", "en")
    assert result.exit_code == 2
    assert f"did you mean {meant}?" in result.output
    assert "support" in result.output


def test_an_unknown_command_gets_no_wild_guess():
    """Only the list."""
    assert "did you mean" not in run("frobnicate").output


@pytest.mark.parametrize(
    ("typed", "code"), [("hc1", "HC-01"), ("KP_3", "KP-03"), ("sc 06", "SC-06"), ("kp-03", "KP-03")]
)
def test_a_code_may_be_spelt_in_many_ways(typed, code):
    """As people say it."""
    assert run("explain", typed).output.startswith(code)


def test_a_mistyped_code_or_schema_gets_a_suggestion():
    """Exit 2."""
    assert "did you mean KP-03?" in run("explain", "KP-033", "--lang", "en").output
    assert "did you mean mooncake?" in run("schema", "moncake", "--lang", "en").output
    assert "是否想写 KP-03" in run("explain", "KP-033", "--lang", "zh").output


def complete(shell, *words):
    variables = {
        "_MINDIE_KVPOOL_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(["mindie-kvpool", *words]),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
    }
    code = "from mindie_kvpool_plugin.cli.main import main; main(prog_name='mindie-kvpool')"
    env = os.environ | variables
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, env=env
    ).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_codes(shell):
    """As the README tells them to."""
    assert "check" in complete(shell, "ch")
    assert "KP-03" in complete(shell, "explain", "KP-0")
    assert "mooncake" in complete(shell, "schema", "moon")
    assert "--select" in complete(shell, "check", "--se")
    for readme in ("README.md", "README.zh.md"):
        assert f"_MINDIE_KVPOOL_COMPLETE={shell}_source" in (ROOT / readme).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "args", [["--help"], ["status"], ["explain", "HC-01"], ["support"], ["chek"], ["check", "/none"]]
)
def test_a_terminal_without_chinese_gets_escapes(args):
    """And no traceback."""
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "--lang", "zh", *args]
    env = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, env=env)
    assert b"\\u" in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr


def test_status_speaks_chinese():
    """Every line of it."""
    lines = run("status", "--lang", "zh").output.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if line and not CHINESE.search(line)] == []


def test_texts_of_the_command_have_no_leftovers():
    """Each help text belongs to a command or an option that exists."""
    known = {"usage", "options", "commands", "option.help", "option.lang", "option.version", "mindie-kvpool"}
    for name in COMMANDS:
        known |= {name, f"{name}.short"} | {
            f"{name}.{parameter.name}" for parameter in main.get_command(None, name).params
        }
    assert has_text("help.check", "en")
    texts = (ROOT / "mindie_kvpool_plugin" / "locale" / "en.json").read_text(encoding="utf-8")
    assert set(re.findall(r'^  "help\.([^"]+)":', texts, re.MULTILINE)) <= known


@pytest.mark.parametrize("args", [["explain"], ["--help"], ["schema", "mooncake"], ["stats"]])
def test_a_full_disk_behind_standard_output_is_one_line(args):
    """And exit status 2, which is none of a command's judgements."""
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "mindie_kvpool_plugin", *args, "--lang", "en"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    assert ended.stderr.decode() == "mindie-kvpool cannot go on: No space left on device\n"
    assert ended.returncode == 2


@pytest.mark.parametrize("args", [["explain"], ["--help"], ["schema", "mooncake"], ["check", "conf_examples"]])
def test_a_pipe_that_nobody_reads_any_more_ends_in_no_judgement(args):
    """As with ``| head -1`` and pipefail: 1 would be what check says of errors."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "mindie_kvpool_plugin", *args, "--lang", "en"]
    with open(writer, "wb") as closed:
        ended = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    assert ended.stderr == b""
    assert ended.returncode == 2


@pytest.mark.parametrize(
    ("closed", "args"), [("<&-", ["check", "-"]), (">&-", ["schema"]), ("2>&-", ["explain", "no"])]
)
def test_a_standard_stream_that_is_closed_ends_in_no_traceback(closed, args):
    """A service manager may start a command without them: nothing is read there, and what is said is lost."""
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "--lang", "en", *args]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == {"<&-": 1, ">&-": 0, "2>&-": 2}[closed]
    assert "the file is empty" in ended.stdout or closed != "<&-"


@pytest.mark.parametrize(("package", "wanted"), [("rich", "'mindie-kvpool-plugin[ops]'"), ("elsewhere", "elsewhere")])
def test_a_missing_package_is_installed_by_an_extra_that_replaces_nothing(package, wanted, monkeypatch):
    """An NPU host has a torch and a Mooncake of its own, which the extras demo and mooncake would replace."""

    def missing(_):
        raise ModuleNotFoundError(name=package)

    monkeypatch.setattr("mindie_kvpool_plugin.cli.main.importlib.import_module", missing)
    result = run("--lang", "en", "stats")
    assert result.stderr == (
        f"mindie-kvpool stats needs the Python package {package}; install it with: pip install {wanted}\n"
    )
    assert result.exit_code == 2
