"""--fix: what is unambiguous is repaired, the rest of the file stays byte for byte."""

import json
from dataclasses import replace

import pytest

from mindie_kvpool_plugin.check.findings import Edit
from mindie_kvpool_plugin.check.repair import apply_edits, repair
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.check.text.document import Document
from tests.check_examples import MINIMAL, changed

GOOD = json.dumps(MINIMAL, indent=2)


def fixed(text):
    return repair(text.encode(), "config.json", Situation()).data.decode()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ('"port"： 1025', '"port": 1025'),
        ('"port": 1025,', '"port": 1025'),
        ("'port': 1025", '"port": 1025'),
        ('"port": 1025.0', '"port": 1025'),
        ('"port": 1.025e3', '"port": 1025'),
        ('"prot": 1025', '"port": 1025'),
        ('"tlsPkPwd": "x",\n    "port": 1025', '"port": 1025'),
        ("port: 1025", '"port": 1025'),
    ],
)
def test_repair_changes_only_what_is_wrong(wrong, right):
    """The neighbours keep their order and their blanks."""
    before = GOOD.replace('"port": 1025', wrong)
    assert before != GOOD
    assert fixed(before) == GOOD.replace('"port": 1025', right)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace('"port": 1025', '"port": 80'),
        GOOD.replace('"port": 1025', '"port": 1025, "Port": 1026'),
        GOOD.replace('"backend": ""', '"backend": moncake'),
        GOOD + '\n"ScheduleConfig": {}}',
        "",
        "\x00",
    ],
)
def test_repair_leaves_decisions_to_the_user(text):
    """A wrong value, two candidates for one key, text a closing brace cut off."""
    done = repair(text.encode(), "config.json", Situation())
    assert done.data == text.encode()
    assert done.codes == ()


def test_repair_keeps_line_ends_and_byte_order_mark():
    """A file from a Windows editor stays one."""
    text = "\ufeff" + GOOD.replace("\n", "\r\n").replace('"port": 1025', '"port"： 1025')
    assert fixed(text) == "\ufeff" + GOOD.replace("\n", "\r\n")


def test_repair_turns_utf16_into_utf8():
    """The host reads UTF-8 only."""
    done = repair(GOOD.encode("utf-16"), "config.json", Situation())
    assert done.data == GOOD.encode()
    assert done.codes == ("FI-05",)


def test_repair_uncovers_and_repairs_the_next_mistake():
    """A misspelt key shows only once the text is JSON."""
    text = json.dumps(changed({"K.asyncwrite": True}), indent=2).replace('"port": 1025', '"port"： 1025.0')
    done = repair(text.encode(), "config.json", Situation())
    assert done.codes == ("JS-01", "SC-08", "HC-82")
    assert json.loads(done.data) == changed({"K.asyncWrite": True})


def test_edits_apply_from_the_end_and_never_overlap():
    """An edit inside another waits for the next round."""
    assert apply_edits("abcdef", [Edit(1, 2, "X"), Edit(4, 6, "Y"), Edit(3, 5, "Z")]) == "aXcdY"


def test_round_that_reads_otherwise_than_foreseen_is_not_accepted(monkeypatch):
    """Whatever is proposed: an edit that takes a value away, or gives another one, stays out."""
    text = GOOD.replace('"port": 1025', '"port"： 1025')
    at = text.index('"metricsPort"')
    honest = Document.placed

    def careless(self, finding, start, end):
        return replace(honest(self, finding, start, end), edits=(Edit(at, at + 20, ""),))

    assert fixed(text) == GOOD
    monkeypatch.setattr(Document, "placed", careless)
    assert fixed(text) == text


def test_good_edits_are_taken_where_another_one_is_not(monkeypatch):
    """One by one, if they fail together."""
    text = GOOD.replace('"port": 1025', '"port"： 1025').replace('"maxLinkNum": 300', "'maxLinkNum': 300")
    honest = Document.placed

    def careless(self, finding, start, end):
        placed = honest(self, finding, start, end)
        return replace(placed, edits=(Edit(start, end, "1"),)) if finding.code == "JS-08" else placed

    monkeypatch.setattr(Document, "placed", careless)
    assert fixed(text) == GOOD.replace('"maxLinkNum": 300', "'maxLinkNum': 300")


def test_key_in_a_list_that_was_not_closed_stays_a_key():
    """Found by tests/fuzz: of two lists that were not closed, colons became commas."""
    text = GOOD.replace("      ]\n    ],\n", "\n    ,\n")
    assert text != GOOD
    assert json.loads(fixed(text)) == MINIMAL
