"""Unit tests of simulator/trace.py and of its replay."""

import json

import pytest

from mindie_kvpool_plugin.simulator.trace import (
    BUNDLED_TRACE,
    TraceError,
    TraceRequest,
    make_chat_trace,
    read_trace,
    write_trace,
)
from mindie_kvpool_plugin.simulator.traffic import replay

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 100, "hash_ids": [0, 1]}


def _file(folder, *lines):
    path = folder / "trace.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", r"trace\.jsonl:2: is not JSON"),
        ([1], r"trace\.jsonl:2: expected an object"),
        (GOOD | {"timestamp": -1}, "timestamp must be a whole number of at least 0, not -1"),
        (GOOD | {"input_length": "600"}, 'input_length must be a whole number of at least 1, not "600"'),
        (GOOD | {"output_length": 0}, "output_length must be a whole number of at least 1, not 0"),
        (GOOD | {"output_length": True}, "output_length must be a whole number of at least 1, not true"),
        ({"timestamp": 0, "output_length": 1, "hash_ids": []}, "input_length must be .*, not null"),
        (GOOD | {"hash_ids": "0,1"}, "hash_ids must be a list of whole numbers"),
        (GOOD | {"hash_ids": [0, 1.5]}, "hash_ids must be a list of whole numbers"),
        (GOOD | {"hash_ids": [0, 1 << 64]}, "hash_ids must be a list of whole numbers from 0"),
        (GOOD | {"hash_ids": [0]}, "600 tokens need 2 hash_ids, one per 512, not 1"),
    ],
)
def test_bad_line_is_named_with_its_number(tmp_path, line, expected):
    """File, line, what was expected and what was found."""
    with pytest.raises(TraceError, match=expected):
        read_trace(_file(tmp_path, GOOD, line))


def test_missing_file_is_named(tmp_path):
    """The path and the system's reason."""
    with pytest.raises(TraceError, match=r"absent\.jsonl: cannot be read: No such file"):
        read_trace(tmp_path / "absent.jsonl")


def test_file_that_is_no_text_is_named(tmp_path):
    """A binary file is no trace."""
    path = tmp_path / "trace.gz"
    path.write_bytes(b"\x1f\x8b\xff\xfe")
    with pytest.raises(TraceError, match=r"trace\.gz: cannot be read: it is not UTF-8 text"):
        read_trace(path)


def test_empty_file_is_refused(tmp_path):
    """Nothing to replay is a mistake."""
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(_file(tmp_path, "", ""))


def test_limit_leaves_later_lines_unread(tmp_path):
    """Only the first requests are parsed."""
    assert len(read_trace(_file(tmp_path, GOOD, "", GOOD, "broken"), limit=2)) == 2


def test_bundled_trace_is_what_the_generator_makes(tmp_path):
    """The committed file can be made again."""
    path = tmp_path / "again.jsonl"
    write_trace(make_chat_trace(), path)
    assert path.read_text(encoding="utf-8") == BUNDLED_TRACE.read_text(encoding="utf-8")


def test_replay_gives_equal_tokens_to_equal_hash_ids():
    """One trace block becomes one cache block, lengths are scaled alike."""
    first = TraceRequest(0, 1100, 64, (5, 6, 7))
    second = TraceRequest(1, 1536, 1, (5, 6, 8))
    prompts = list(replay([first, second], block_size=16).ready)
    assert [len(prompt.tokens) for prompt in prompts] == [34, 48]
    assert [prompt.answer_length for prompt in prompts] == [2, 1]
    assert prompts[0].tokens[:32] == prompts[1].tokens[:32]
    assert prompts[0].tokens[32:] != prompts[1].tokens[32:34]


def test_replay_differs_per_seed():
    """The seed changes every token."""
    request = TraceRequest(0, 512, 1, (0,))
    (one,), (other,) = (list(replay([request], seed=seed).ready) for seed in (0, 1))
    assert one.tokens != other.tokens
