"""The load stage: the host's dialect, positions, and bytes that are no configuration."""

import json

import pytest

from mindie_kvpool_plugin.check.text.load import MAX_BYTES, MAX_TOLERANT_CHARS, load_bytes
from tests.check_examples import MINIMAL

GOOD = json.dumps(MINIMAL, indent=2)


def found(data):
    document = load_bytes(data if isinstance(data, bytes) else data.encode(), "config.json")
    return [finding.code for finding in document.findings]


@pytest.mark.parametrize(
    "text", [GOOD, GOOD.replace("\n", "\r\n"), "\n\t " + GOOD + " \r\n\n", GOOD.replace('"port"', '"\\u0070ort"')]
)
def test_load_accepts_what_the_host_accepts(text):
    """CRLF, blanks around, escapes."""
    document = load_bytes(text.encode(), "config.json")
    assert document.findings == []
    assert document.value == MINIMAL


def test_load_notes_a_byte_order_mark():
    """Fine in config.json, late trouble in the pool file."""
    data = b"\xef\xbb\xbf" + GOOD.encode()
    assert [(f.code, f.severity) for f in load_bytes(data, "c").findings] == [("FI-06", "info")]
    assert [(f.code, f.severity) for f in load_bytes(data, "c", bom_is_error=True).findings] == [("FI-06", "error")]


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"", ["FI-02"]),
        (b" " * 10, ["JS-24"]),
        (b"x" * (MAX_BYTES + 1), ["FI-03"]),
        (b'{"a": "\xff"}', ["FI-04"]),
        (b"null", ["JS-24"]),
        (b'{"a": 1}}', ["JS-19"]),
        (b'{"a": 1, "a": 2}', ["JS-20"]),
        (b'{"a": "\\ud800"}', ["JS-22"]),
        (b'{"a": 1e999}', ["JS-23"]),
        (b'{"a": NaN}', ["JS-09"]),
        (b'{"a":' * 9000 + b"1" + b"}" * 9000, ["FI-08"]),
    ],
)
def test_load_names_what_the_host_refuses(data, codes):
    """Also where Python's own parser is more forgiving than the host's."""
    assert found(data) == codes


def test_load_reads_three_thousand_levels():
    """Deeper than Python's own parser goes, and fine for the host."""
    document = load_bytes(b'{"a":' * 3000 + b"1" + b"}" * 3000, "config.json")
    assert document.findings == []
    assert document.is_valid


def test_load_says_where_a_large_file_stops_being_json():
    """Too large for a cause, not for a place."""
    text = '{"a": [' + "1,\n" * MAX_TOLERANT_CHARS + "x]}"
    document = load_bytes(text.encode(), "config.json")
    assert [(f.code, f.line) for f in document.findings] == [("JS-26", MAX_TOLERANT_CHARS + 1)]


def test_load_warns_when_it_could_not_look_at_everything():
    """Deep for Python's parser, long for ours: neither good nor bad can be said."""
    text = '{"a": ' + "[" * 2000 + "1," * MAX_TOLERANT_CHARS + "1" + "]" * 2000 + "}"
    assert found(text) == ["FI-09"]


@pytest.mark.parametrize(
    ("path", "of_key", "text"),
    [
        ("/ServerConfig/port", False, "1025"),
        ("/ServerConfig/port", True, '"port"'),
        ("/BackendConfig/kvPoolConfig", False, '"kvPoolConfig"'),
        ("/BackendConfig/npuDeviceIds/0", False, "["),
        ("/BackendConfig/npuDeviceIds/0/2", False, "2"),
        ("/ServerConfig/absent", False, '"ServerConfig"'),
        ("", False, "{"),
    ],
)
def test_document_knows_where_a_pointer_is(path, of_key, text):
    """Values, keys, items; for what is absent, the object it is absent from."""
    document = load_bytes(GOOD.encode(), "config.json")
    start, end = document.span(path, of_key=of_key)
    assert document.text[start:end] == text


def test_document_removes_a_member_with_its_comma():
    """First, middle and last member."""
    document = load_bytes(b'{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}', "config.json")
    for key, left in (("a", {"b": 2, "c": 3}), ("b", {"a": 1, "c": 3}), ("c", {"a": 1, "b": 2})):
        edit = document.member_removal(f"/{key}")
        assert json.loads(document.text[: edit.start] + document.text[edit.end :]) == left


def test_document_places_a_finding_in_characters():
    """A Chinese character counts as one column."""
    document = load_bytes('{\n "权重": "x"， "b": 1}'.encode(), "config.json")
    assert [(f.code, f.line, f.column) for f in document.findings] == [("JS-01", 2, 11)]
