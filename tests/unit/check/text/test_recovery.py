"""Recovery: several errors in one file, each with its cause, and a tree for the later stages."""

import pytest

from mindie_kvpool_plugin.check.text.recovery import MAX_ERRORS, parse_broken, parse_valid


@pytest.mark.parametrize(
    ("text", "codes", "value"),
    [
        ('{"a"：1}', ["JS-01"], {"a": 1}),
        ('{"a": 1，"b": 2}', ["JS-01"], {"a": 1, "b": 2}),
        ("{“a”: “b”}", ["JS-02", "JS-02"], {"a": "b"}),
        ('{"a": "b”, "c": 1}', ["JS-02"], {"a": "b", "c": 1}),
        ('{"a""b"}', ["JS-03"], {"a": "b"}),
        ('{"a":1 "b":2}', ["JS-04"], {"a": 1, "b": 2}),
        ('{"a":[1,2,],}', ["JS-05", "JS-05"], {"a": [1, 2]}),
        ('{"a":1 // one\n /* two */}', ["JS-06", "JS-06"], {"a": 1}),
        ('1 {\n2  "a": 1,\n3  "b": 2\n4 }', ["JS-07"], {"a": 1, "b": 2}),
        ('{\n "a": 1,\n 3 "b": 2}', ["JS-07"], {"a": 1, "b": 2}),
        ("{'a': 'it\\'s'}", ["JS-08", "JS-08"], {"a": "it's"}),
        ('{"a": True, "b": None}', ["JS-09", "JS-09"], {"a": True, "b": None}),
        ('{"a": {"b": 1', ["JS-10", "JS-10"], {"a": {"b": 1}}),
        ('{"a": [1, 2, "b": 3}', ["JS-10"], {"a": [1, 2], "b": 3}),
        ('{"a": [[1, 2}], "b": 3}', ["JS-11"], {"a": [[1, 2]], "b": 3}),
        ('{"a": 1]', ["JS-11"], {"a": 1}),
        ('"a": 1', ["JS-11"], {"a": 1}),
        ('{"a":\u00a01}', ["JS-12"], {"a": 1}),
        ('{"a": "x\ty"}', ["JS-13"], {"a": "x\ty"}),
        ('{"a": "abc\n}', ["JS-13"], {"a": "abc"}),
        ('{"a": "C:\\data"}', ["JS-14"], {"a": "C:\\data"}),
        ('{"a": 007}', ["JS-15"], {"a": 7}),
        ("{a: mooncake}", ["JS-16", "JS-16"], {"a": "mooncake"}),
        ('{... "a": 1, …}', ["JS-17", "JS-17", "JS-05"], {"a": 1}),
        ('{"a": , "b": }', ["JS-18", "JS-18"], {"a": None, "b": None}),
        ('{"a": 1,, "b": 2}', ["JS-21"], {"a": 1, "b": 2}),
        ('{"p": "{"plugin_type":"mtp"}"}', ["JS-27"], {"p": '{"plugin_type":"mtp"}'}),
        ('{"a" = 1; "b": 2}', ["JS-01", "JS-01"], {"a": 1, "b": 2}),
    ],
)
def test_recovery_names_the_cause_and_reads_on(text, codes, value):
    """One finding per mistake, and the value that was meant."""
    parsed = parse_broken(text)
    assert sorted(finding.code for finding, _, _ in parsed.findings) == sorted(codes)
    assert parsed.root is not None
    assert parsed.root.value == value


def test_recovery_names_the_bracket_that_is_open():
    """By its key and its line."""
    parsed = parse_broken('{\n"BackendConfig": {\n"port": 1\n}')
    findings = [(f.code, f.params["bracket"], f.params["opened"]) for f, _, _ in parsed.findings]
    assert findings == [("JS-10", "{", 1)]


def test_recovery_stops_at_a_hopeless_file():
    """A binary is not listed byte by byte."""
    parsed = parse_broken('{"a": ' + "@ " * 1000)
    assert len(parsed.findings) == MAX_ERRORS
    assert not parsed.complete


def test_recovery_edits_make_valid_json():
    """What is reported is what is repaired."""
    text = "{\"a\"：1, “b”: [1,2,], 'c': True"
    parsed = parse_broken(text)
    edits = [edit for finding, _, _ in parsed.findings for edit in finding.edits]
    for edit in sorted(edits, key=lambda each: each.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    root = parse_valid(text)
    assert root is not None
    assert root.value == {"a": 1, "b": [1, 2], "c": True}


def test_valid_tree_keeps_duplicates_and_places():
    """The value is the host's, the places are of all members."""
    root = parse_valid('{"a": 1, "a": [2]}')
    assert root.value == {"a": [2]}
    assert [(key, start) for key, start, _, _ in root.members] == [("a", 1), ("a", 9)]
    assert root.child("a").child("0").value == 2
    assert root.child("b") is None
