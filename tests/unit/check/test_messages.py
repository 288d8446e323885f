"""Texts: every code, every variant, in both languages, with the same placeholders."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import mindie_kvpool_plugin
from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.messages import LANGUAGES, has_text, hint, language, message
from mindie_kvpool_plugin.check.rules import all_codes
from mindie_kvpool_plugin.check.sources import DOCUMENTS, address, origins, told
from mindie_kvpool_plugin.cli.main import main

PACKAGE = Path(mindie_kvpool_plugin.__file__).parent
ROOT = Path(__file__).parents[3]


def texts(lang):
    return json.loads((PACKAGE / "locale" / f"{lang}.json").read_text(encoding="utf-8"))


def test_every_text_has_its_twin():
    """Same keys, same placeholders, nothing empty."""
    en, zh = texts("en"), texts("zh")
    assert en.keys() == zh.keys()
    for key in en:
        assert en[key].strip(), key
        assert zh[key].strip(), key
        found = [set(re.findall(r"{\w+}", each[key])) for each in (en, zh)]
        # start-up speaks English only: there the check repeats its words, in Chinese it has its own
        is_words_of_start = en[key] in {"{what}", "{fix}"}
        assert found[0] == found[1] or (is_words_of_start and found[1] <= {"{key}", "{value}", "{expected}"}), key


@pytest.mark.parametrize("lang", LANGUAGES)
def test_texts_are_sorted_and_named_once(lang):
    """JSON takes the last of two namesakes without a word."""
    lines = (PACKAGE / "locale" / f"{lang}.json").read_text(encoding="utf-8").splitlines()[1:-1]
    keys = [line.split('"')[1] for line in lines]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("code", sorted(all_codes()))
def test_every_code_is_explained(code):
    """Title, reason, and a message and a hint for at least one variant."""
    for lang in LANGUAGES:
        assert has_text(f"{code}.title", lang)
        assert has_text(f"{code}.why", lang)
    assert any(re.fullmatch(rf"{code}(\.\w+)?\.message", key) for key in texts("en"))


def test_every_variant_in_the_code_has_a_text():
    """A variant is a literal where a finding is made."""
    keys = texts("en")
    for path in (PACKAGE / "check").rglob("*.py"):
        for variant in re.findall(r'variant="(\w+)"', path.read_text(encoding="utf-8")):
            assert any(key.endswith(f".{variant}.message") for key in keys), f"{path.name}: {variant}"


def test_texts_speak_of_things_a_user_knows():
    """MindIE-LLM by its name, a file by an example: our own words for them stay in the code."""
    for lang in LANGUAGES:
        inner = r"\b[Tt]he host\b|\bFILE\b|=FILE|主机|\bdesign \d"
        assert [key for key, text in texts(lang).items() if re.search(inner, text)] == []


@pytest.mark.parametrize("code", sorted(all_codes()))
def test_a_source_is_a_document_with_a_section(code):
    """By its title, in both languages; of this project's README the section exists."""
    source = all_codes()[code].source
    for key, section in origins(source):
        assert key in {*DOCUMENTS, "json", "code", "readme"}
        assert section
    for lang in LANGUAGES:
        lines = told(source, lang)
        assert len(lines) == len(origins(source))
        assert not any("source." in line or "{" in line for line in lines)
        for file, section in re.findall(r"(README\S*\.md)(?:: |：)(.*)", "\n".join(lines)):
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^#+ {re.escape(section)}$", text, re.MULTILINE), section
    assert address(source).startswith("https://")


# what may be called otherwise, and what it is called here
SYNONYMS = {
    "池配置文件": "池文件", "宿主": "MindIE-LLM", "手册": "文档", "调度进程": "调度器", "解码节点": "Decode 节点",
    "decode 节点": "Decode 节点", "预填充节点": "Prefill 节点", "prefill 节点": "Prefill 节点", "启用": "开启",
    "本包": "本插件", "告警": "警告", "配置项": "键", "换入（reload）": "取回", "换出（spill）": "下沉", "修正": "修改",
    "KV 缓存": "KV Cache", "推测解码": "并行解码",
}  # fmt: skip


@pytest.mark.parametrize("other", SYNONYMS)
def test_one_thing_has_one_chinese_word(other):
    """In messages, help, the table of modes and the README; a reader need not guess whether two words are one thing."""
    readme = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    where = {**texts("zh"), "README.zh.md": readme, "support": support.table("zh")}
    assert [name for name, text in where.items() if other in text] == [], f"it is called {SYNONYMS[other]}"


def test_every_message_has_a_hint():
    """What to do is never left out."""
    keys = texts("en")
    assert [key for key in keys if key.endswith(".message") and key.replace(".message", ".hint") not in keys] == []


def test_message_fills_placeholders_and_escapes_control_characters():
    """A hostile value cannot move the cursor of a terminal."""
    finding = codes.WRONG_TYPE.found(value="\x1b[2J", params={"key": "a\x1bb", "expected": "integer"})
    assert "\x1b" not in message(finding, "en") + hint(finding, "en")
    assert "integer" in hint(finding, "zh")


@pytest.mark.parametrize(
    ("wanted", "env", "lang"),
    [
        ("en", {"LANG": "zh_CN.UTF-8"}, "en"),
        ("zh", {}, "zh"),
        ("auto", {"LANG": "zh_CN.UTF-8"}, "zh"),
        ("auto", {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ("auto", {}, "en"),
    ],
)
def test_language_follows_the_locale(wanted, env, lang):
    """LC_ALL before LC_MESSAGES before LANG."""
    assert language(wanted, env) == lang


def test_the_file_itself_has_a_name_in_both_languages(tmp_path):
    """What stands outside of every section."""
    path = tmp_path / "config.json"
    path.write_text('{"sesrver": 1}', encoding="utf-8")
    for lang, name in (("en", "the file"), ("zh", "文件")):
        run = CliRunner().invoke(main, ["check", str(path), "--no-env", "--lang", lang, "--format", "json"])
        told = {finding["code"]: finding["message"] for finding in json.loads(run.stdout)["findings"]}
        assert name in told["SC-01"]
        assert name in told["SC-06"]


def test_a_key_that_stands_twice_is_quoted_once(tmp_path):
    """A value brings its own marks."""
    path = tmp_path / "config.json"
    path.write_text('{"ServerConfig": {}, "ServerConfig": {}}', encoding="utf-8")
    for lang in LANGUAGES:
        run = CliRunner().invoke(main, ["check", str(path), "--no-env", "--lang", lang, "--format", "json"])
        (told,) = (each["message"] for each in json.loads(run.stdout)["findings"] if each["code"] == "JS-20")
        assert '"ServerConfig"' in told
        assert '""' not in told
