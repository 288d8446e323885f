"""Files as people damage them: one cause at its place, and a repair that gives the file back or keeps its hands off."""

import json

import pytest

from mindie_kvpool_plugin.check.messages import hint, message
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.repair import is_repairable, repair
from mindie_kvpool_plugin.check.situation import Situation
from tests.check_examples import ROOT

EXAMPLE = ROOT / "conf_examples" / "qwen_one_server" / "config.json"
WHOLE = EXAMPLE.read_text(encoding="utf-8")
SITUATION = Situation(follow=False)


def damaged(old, new):
    """The shipped example with a piece of it replaced."""
    assert WHOLE.count(old) == 1, old
    return WHOLE.replace(old, new)


def told(text):
    """Codes and lines of what is reported above info."""
    data = text if isinstance(text, bytes) else text.encode()
    return [(f.code, f.line) for f in check_bytes(data, "config.json", SITUATION).findings if f.severity != "info"]


def fixed(text):
    """The text after --fix; a second run must change nothing."""
    once = repair(text.encode(), "config.json", SITUATION)
    assert repair(once.data, "config.json", SITUATION).data == once.data
    return once.after


def line_of(piece):
    return WHOLE[: WHOLE.index(piece)].count("\n") + 1


REPAIRED = {
    "closing quote lost": ('"mooncake",', '"mooncake,', "JS-13", 0),
    "opening quote lost": ('"mooncake",', 'mooncake",', "JS-13", 0),
    "closing quote of a key lost": ('"backend":', '"backend:', "JS-13", 0),
    "opening quote of a key lost": ('"backend":', 'backend":', "JS-13", 0),
    "closing quote of a key before a number lost": ('"maxSeqLen": 32768,', '"maxSeqLen: 32768,', "JS-13", 0),
    "closing quote of a section lost": ('"kvPoolConfig": {', '"kvPoolConfig: {', "JS-13", 0),
    "closing quote of a key before a list lost": ('"tlsCaFile":', '"tlsCaFile:', "JS-13", 0),
    "closing quote of a key before numbers lost": ('"npuDeviceIds":', '"npuDeviceIds:', "JS-13", 0),
    "closing quote of a key before a text with escapes lost": ('"plugin_params":', '"plugin_params:', "JS-13", 0),
    "closing quote lost in a list": ('["metrics_ca.pem"]', '["metrics_ca.pem]', "JS-13", 0),
    "quote of an empty text lost": ('ValidTime": ""', 'ValidTime": "', "JS-13", 0),
    "opening quote of the first key lost": ('"$schema"', '$schema"', "JS-13", 0),
    "kvPoolConfig not closed": ('"asyncWrite": true\n        },', '"asyncWrite": true\n', "JS-10", 0),
    "kvPoolConfig not closed, comma kept": ('"asyncWrite": true\n        },', '"asyncWrite": true,\n', "JS-10", 0),
    "ServerConfig not closed": ('Threshold": 0\n        }\n    },', 'Threshold": 0\n        }\n', "JS-10", 1),
    "ServerConfig not closed, comma kept": (
        'Threshold": 0\n        }\n    },',
        'Threshold": 0\n        },\n',
        "JS-10",
        1,
    ),
    "ModelDeployConfig not closed": ("            ]\n        },\n", "            ]\n", "JS-10", 0),
    "ModelDeployConfig not closed, comma kept": ("            ]\n        },\n", "            ],\n", "JS-10", 0),
    "ScheduleConfig not closed": ('Time": 2500\n        }\n    },', 'Time": 2500\n    },', "JS-10", 0),
    "BackendConfig not closed": ('Time": 2500\n        }\n    },', 'Time": 2500\n        }\n', "JS-10", 1),
    "BackendConfig not closed, comma kept": ('Time": 2500\n        }\n    },', 'Time": 2500\n        },\n', "JS-10", 1),
    "ScheduleConfig not opened": ('"ScheduleConfig": {', '"ScheduleConfig":', "JS-11", 0),
    "kvPoolConfig not opened": ('"kvPoolConfig": {', '"kvPoolConfig":', "JS-11", 0),
    "ServerConfig not opened": ('"ServerConfig": {', '"ServerConfig":', "JS-11", 0),
    "full-width digit": ('"worldSize": 4,', '"worldSize": ４,', "JS-15", 0),
    "leading zero": ('"worldSize": 4,', '"worldSize": 04,', "JS-15", 0),
    "hexadecimal": ('"worldSize": 4,', '"worldSize": 0x4,', "JS-15", 0),
    "NUL inside a text": ('"mooncake",', '"moon\0cake",', "JS-13", 0),
    "NUL beside a text": ('"mooncake",', '\0"mooncake",', "JS-12", 0),
    "key quoted twice": ('"asyncWrite"', '""asyncWrite""', "JS-27", 0),
    "text quoted twice": ('"mooncake"', '""mooncake""', "JS-27", 0),
}


@pytest.mark.parametrize("name", REPAIRED)
def test_damage_has_one_cause_and_its_repair_gives_the_value_back(name):
    """One finding in the right line; after --fix the value of the undamaged file."""
    old, new, code, lines_down = REPAIRED[name]
    text = damaged(old, new)
    assert told(text) == [(code, line_of(old) + lines_down)]
    assert json.loads(fixed(text)) == json.loads(WHOLE)
    assert told(fixed(text)) == []


def test_repair_puts_a_brace_where_the_indentation_says():
    """Not at the end of the file, and looking as if it had always been there."""
    text = damaged('"asyncWrite": true\n        },\n', '"asyncWrite": true\n')
    assert fixed(text) == WHOLE


@pytest.mark.parametrize("name", ["closing", "opening"])
def test_repair_of_a_quote_restores_the_file(name):
    """Byte for byte; a second run adds nothing."""
    new = {"closing": '"mooncake,', "opening": 'mooncake",'}[name]
    assert fixed(damaged('"mooncake",', new)) == WHOLE


MERGE = damaged(
    '        "port": 1025,\n',
    '<<<<<<< HEAD\n        "port": 1025,\n=======\n        "port": 1035,\n>>>>>>> feature/port\n',
)
UNTOUCHED = {
    "merge": (MERGE, [("JS-28", 7)]),
    "program": (b"\x7fELF\2\1\1" + bytes(40) + b"\xff" * 400, [("FI-10", 1)]),
    "noise": (bytes(range(256)) * 20, [("FI-10", 1)]),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_repair_keeps_its_hands_off_what_a_person_must_decide(name):
    """One cause, and not a byte changed."""
    data, found = UNTOUCHED[name]
    data = data if isinstance(data, bytes) else data.encode()
    assert told(data) == found
    assert repair(data, "config.json", SITUATION).data == data


COPIED = {
    "fence": f"```json\n{WHOLE}```\n",
    "fence and sentences": f"The file config.json:\n\n```json\n{WHOLE}```\n\nRestart the service.\n",
    "sentence": f"配置文件如下。\n{WHOLE}",
    "bullets": "".join(f"• {line}\n" for line in WHOLE.splitlines()),
    "NUL at the end": WHOLE + "\0\0",
}


@pytest.mark.parametrize("name", COPIED)
def test_what_came_along_with_a_copy_is_one_cause(name):
    """However many lines it is on."""
    assert len(told(COPIED[name])) == 1
    assert json.loads(fixed(COPIED[name])) == json.loads(WHOLE)


def test_repetitions_are_counted_in_the_message():
    """In both languages."""
    finding = check_bytes(COPIED["bullets"].encode(), "config.json", SITUATION).findings[0]
    others = WHOLE.count("\n") - 1
    assert f"and {others} more like this" in message(finding, "en")
    assert f"另有 {others} 处相同" in message(finding, "zh")


def test_misspelt_key_with_a_look_alike_is_renamed_not_deleted():
    """pluginParams is no key of any version; what was meant is beside it."""
    text = damaged('"plugin_params"', '"pluginParams"')
    assert ("HC-82", line_of('"plugin_params"')) in told(text)
    assert fixed(text) == WHOLE


def test_misspelt_key_stays_where_its_look_alike_is_taken():
    """Two values and one home: a decision."""
    text = damaged('"plugin_params":', '"pluginParams": "x",\n                    "plugin_params":')
    assert fixed(text) == text


def test_entry_of_a_list_is_named_by_its_list():
    """Not by its number alone."""
    text = damaged('"trustRemoteCode": false', '"trustRemoteCode": false, "qwerty": 1')
    (finding,) = [f for f in check_bytes(text.encode(), "config.json", SITUATION).findings if f.code == "SC-06"]
    assert message(finding, "en").startswith("ModelConfig[0] knows no key")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": 1, "c": 2}',
        '{\n"a": http://host:8080,\n"b": 1 /* not closed\n}',
        '{"a": [0\n1, 2]}',
        '{\n "a": "b" "c"\n}',
        '{"backend": "mooncake, "configPath": "/etc/mindie/kv_pool.json"}',
        '{"port": 1025",\n "b": 1}',
    ],
)
def test_repair_loses_nothing_where_the_cause_is_not_certain(text):
    """Every number and every quoted text is there afterwards, and a second run changes nothing."""
    after = fixed(text)
    for piece in ("mooncake", "/etc/mindie/kv_pool.json", "1025", "8080", "[0", '"c"', "not closed"):
        assert (piece in after) >= (piece in text)


PARAMS = '"{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}"'
TEXTS = {
    # text -> code, and what of it is underlined
    PARAMS.replace(",", "，"): ("HC-09", "prefix_cache，kv_pool"),
    PARAMS.replace(",", ";"): ("HC-09", "prefix_cache;kv_pool"),
    PARAMS.replace("cache", "cahce"): ("HC-06", "prefix_cahce"),
    PARAMS.replace("kv_pool", "kvpool"): ("HC-06", "kvpool"),
    PARAMS.replace("plugin_type", "plugin_typ"): ("HC-08", "plugin_typ"),
    PARAMS.replace("\\", "\\\\\\"): ("HC-08", '\\\\\\"'),
    PARAMS.replace("}", ""): ("HC-08", '\\"'),
    PARAMS.replace('\\"}', "}"): ("HC-08", '\\"prefix_cache,kv_pool}'),
    PARAMS.replace(":", "："): ("HC-08", "："),
}


@pytest.mark.parametrize("text", TEXTS)
def test_fault_in_plugin_params_is_one_finding_inside_the_text(text):
    """The cause only: what a repaired text would not show follows from it, and is counted."""
    whole = damaged(PARAMS, text)
    (finding,) = [f for f in check_bytes(whole.encode(), "config.json", SITUATION).findings if f.severity != "info"]
    line = whole.split("\n")[finding.line - 1]
    assert (finding.code, line[finding.column - 1 :][: finding.length]) == TEXTS[text]
    assert finding.followers
    assert finding.severity == "error"
    assert "more that follow" in message(finding, "en")
    assert "由此引起" in message(finding, "zh")


def test_cause_inside_plugin_params_is_named_in_both_languages():
    """Not only that the text is not JSON."""
    data = damaged(PARAMS, PARAMS.replace("}", "")).encode()
    finding = check_bytes(data, "config.json", SITUATION).findings[0]
    assert "never closed" in message(finding, "en")
    assert hint(finding, "en") == "inside the text: insert }"
    assert "没有闭合" in message(finding, "zh")


def test_slip_is_as_bad_as_what_follows_from_it():
    """A misspelt key is a warning; where it is a required one the host refuses to start."""
    findings = check_bytes(damaged('"maxSeqLen"', '"maxSeqLem"').encode(), "config.json", SITUATION).findings
    told = [(f.code, f.severity, f.outcome) for f in findings if f.severity != "info"]
    assert told == [("HC-82", "error", "boot")]


def test_each_slip_answers_for_its_own_followers():
    """Two slips, and each as bad as what it caused."""
    text = damaged('"maxSeqLen"', '"maxSeqLem"').replace('"tokenTimeout"', '"tokenTimeoutt"')
    text = text.replace('"openAiSupport"', '"openAiSuport"')
    findings = check_bytes(text.encode(), "config.json", SITUATION).findings
    told = {f.params["key"]: (f.severity, f.followers) for f in findings if f.severity != "info"}
    assert told == {"maxSeqLem": ("error", 1), "tokenTimeoutt": ("error", 1), "openAiSuport": ("warning", 0)}


ONE_SLIP = {
    "a name in capitals": ('"backend": "mooncake"', '"backend": "Mooncake"', "SC-04"),
    "a section as text": (
        '{\n            "backend": "mooncake",\n            "configPath": "/etc/mindie/kv_pool.json",\n'
        '            "asyncWrite": true\n        }',
        '"{\\"backend\\": \\"mooncake\\", \\"configPath\\": \\"/etc/mindie/kv_pool.json\\"}"',
        "SC-02",
    ),
    "NaN in plugin_params": ('kv_pool\\"}"', 'kv_pool\\",\\"a\\":NaN}"', "HC-08"),
    "a number too large in plugin_params": ('kv_pool\\"}"', 'kv_pool\\",\\"a\\":1e999}"', "HC-08"),
}


@pytest.mark.parametrize("name", ONE_SLIP)
def test_value_whose_meaning_is_plain_answers_for_what_follows(name):
    """The slip alone is told, as an error, and counts the others."""
    old, new, code = ONE_SLIP[name]
    beside_its_pool_file = Situation(config_path=EXAMPLE)
    findings = check_bytes(damaged(old, new).encode(), "config.json", beside_its_pool_file).findings
    (slip,) = [finding for finding in findings if finding.severity != "info"]
    assert (slip.code, slip.severity) == (code, "error")
    assert slip.followers >= 1


SNIPPET = """{
  ...
  "BackendConfig": {
    ...
    "kvPoolConfig": {
      "backend": "mooncake",
      "configPath": "/etc/mindie/kv_pool.json"
    },
    ...
    "ModelDeployConfig": {
      ...
      "ModelConfig": [{"plugin_params": "{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}"}]
    }
  }
}
"""
PARTS = {
    "with dots": (SNIPPET, [("JS-17", 2)]),
    "without braces around": ("\n".join(SNIPPET.split("\n")[2:-2]), [("JS-17", 2)]),
    "dots and commas": (
        SNIPPET.replace("...\n", "...,\n").replace("    }\n  }", "    },\n    ...\n  }"),
        [("JS-17", 2)],
    ),
    "one section": ('{"kvPoolConfig": {"backend": "", "configPath": ""}}', [("SC-01", 1), ("SC-06", 1)]),
    "one section without braces around": ('"kvPoolConfig" : {"backend":"", "configPath":""}', []),
    "nothing in it": ("{}", [("SC-01", 1)]),
}


@pytest.mark.parametrize("name", PARTS)
def test_part_of_a_configuration_is_not_told_line_by_line(name):
    """One cause; the missing keys of an object are one finding, and none where dots stand for them."""
    text, found = PARTS[name]
    assert [each for each in told(text) if each[0] in {"JS-17", "JS-10", "SC-01", "SC-06"}] == found


def test_dots_that_stand_for_something_are_left_alone():
    """Without them the file would only look as if nothing had been left out."""
    assert fixed(SNIPPET) == SNIPPET
    (cause,) = [f for f in check_bytes(SNIPPET.encode(), "config.json", SITUATION).findings if f.code == "JS-17"]
    assert not is_repairable(cause)
    assert fixed(damaged('        "port"', '        ...\n        "port"')) == WHOLE


def test_missing_keys_of_an_object_are_named_together():
    """In both languages."""
    finding = check_bytes(b"{}", "config.json", SITUATION).findings[0]
    assert message(finding, "en") == "2 keys are missing in the file: ServerConfig, BackendConfig"
    assert "ServerConfig, BackendConfig" in message(finding, "zh")


def test_damage_that_leaves_the_reading_open_stands_for_what_it_may_have_caused():
    """A brace too many cuts sections off: they are not missing."""
    text = damaged('"asyncWrite": true\n        },', '"asyncWrite": true\n        }}},')
    first = check_bytes(text.encode(), "config.json", SITUATION).findings[0]
    assert first.code == "JS-19"
    assert first.followers > 1
    assert "SC-01" not in {code for code, _ in told(text)}
