"""JSON Lines of requests: every form becomes chains of names, and a mistake is told with its line."""

import json

import pytest

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.planning.request_lines import Words, read_lines, with_bytes, with_tokenizer
from mindie_kvpool_plugin.planning.traffic_file import convert, is_trace, read_traffic
from mindie_kvpool_plugin.simulator.trace import TRACE_BLOCK_TOKENS, TraceError, read_trace

UNIT = 4
LETTERS = Words(lambda text: text.encode(), 1.0, "plan.bytes_are_tokens")


def write(folder, *lines):
    file = folder / "requests.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return file


def read(folder, *lines, unit=UNIT, words=LETTERS):
    return read_lines(write(folder, *lines), unit, words)


@pytest.mark.parametrize(
    "line",
    [
        {"token_ids": [97, 98, 99, 100, 101]},
        {"prompt_token_ids": [97, 98, 99, 100, 101]},
        {"prompt": [97, 98, 99, 100, 101]},
        {"body": {"prompt": [97, 98, 99, 100, 101]}},
    ],
    ids=lambda line: next(iter(line)),
)
def test_token_ids_are_cut_into_full_units(tmp_path, line):
    """Five tokens: one full unit of four."""
    (request,) = read(tmp_path, line).requests
    assert (request.tokens, len(request.names), request.answer_tokens) == (5, 1, 1)


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "abcdefgh"},
        {"inputs": "abcdefgh"},
        {"text_input": "abcdefgh"},
        {"request": {"prompt": "abcdefgh"}},
        {"body": json.dumps({"prompt": "abcdefgh"})},
        '2026-01-02 03:04:05 POST /v1/completions {"prompt": "abcdefgh"} 200',
    ],
    ids=["prompt", "inputs", "text_input", "request", "body as text", "log line"],
)
def test_texts_are_found_wherever_they_lie(tmp_path, line):
    """Also in a body that was logged as a text, and behind a time stamp."""
    traffic = read(tmp_path, line)
    assert traffic.requests[0].names == read(tmp_path, {"prompt": "abcdefgh"}).requests[0].names
    assert "plan.bytes_are_tokens" in traffic.remarks


def test_equal_prefixes_have_equal_names(tmp_path):
    """And nothing behind a difference has."""
    first, second, third = read(
        tmp_path, {"prompt": "abcdefghijkl"}, {"prompt": "abcdefghijkX"}, {"prompt": "Xbcdefghijkl"}
    ).requests
    assert first.names[:2] == second.names[:2]
    assert first.names[2] != second.names[2]
    assert not set(first.names) & set(third.names)


def test_the_next_turn_finds_the_answer(tmp_path):
    """Chat messages and their answer name the same blocks as the next turn's messages."""
    asked = [{"role": "user", "content": "What is a block?"}]
    answer = "KV of some tokens."
    turns = [*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": "And a prefix?"}]
    first, second = read(tmp_path, {"messages": asked, "response": answer}, {"messages": turns}).requests
    assert len(first.stored) > len(first.names)
    assert list(second.names[: len(first.stored)]) == list(first.stored)


def test_an_unknown_answer_takes_room(tmp_path):
    """Its length is known, its names are nobody's."""
    traffic = read(
        tmp_path, {"prompt": "abcd", "max_tokens": 9}, {"prompt": "abcd", "parameters": {"max_new_tokens": 9}}
    )
    first, second = traffic.requests
    assert len(first.stored) == len(second.stored) == (4 + 9 - 1) // UNIT
    assert set(first.stored) & set(second.stored) == set(first.names)
    assert "plan.answers_unknown" in traffic.remarks


def test_bytes_stand_for_tokens(tmp_path):
    """16 bytes at 2 bytes a token: 8 tokens, two units."""
    (request,) = read(tmp_path, {"prompt": "abcdefghabcdefgh"}, words=with_bytes(2.0)).requests
    assert (request.tokens, len(request.names)) == (8, 2)


def test_a_tokenizer_needs_its_package(tmp_path, monkeypatch):
    """One line that says what to install, or to do without."""
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="pip install tokenizers"):
        with_tokenizer(tmp_path)


def test_a_tokenizer_names_blocks_by_its_tokens(tmp_path):
    """Two words are two tokens, however long they are; what lies in the folder is the weights' own."""
    library = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    made = library.Tokenizer(library.models.WordLevel({"[UNK]": 0, "pool": 1, "block": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    traffic = read(tmp_path, {"prompt": "pool block pool block pool"}, words=with_tokenizer(tmp_path))
    assert (traffic.requests[0].tokens, len(traffic.requests[0].names)) == (5, 1)
    assert "plan.no_template" in traffic.remarks
    with pytest.raises(ConfigError, match=r"nowhere.*cannot be read"):
        with_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "is not JSON: Expecting value at column 1"),
        ('{"prompt": "ab', "is not JSON: Unterminated string"),
        ("[1, 2]", "expected an object such as"),
        ('{"model": "x"}', "has no prompt; expected one of token_ids"),
        ('{"prompt": ""}', 'prompt is "", expected a text or a list of token ids'),
        ('{"prompt": 7}', "prompt is 7, expected"),
        ('{"token_ids": [1, -2]}', "token_ids must be a list of whole numbers"),
        ('{"token_ids": [1, 9223372036854775808]}', "token_ids must be a list of whole numbers"),
        ('{"token_ids": []}', "and not empty"),
        ('{"messages": ["hello"]}', "messages must be a list of objects"),
        ('{"prompt": "abcd", "timestamp": "now"}', 'timestamp must be a number of milliseconds, not "now"'),
        (
            "[2026] Receive request from 10.0.0.1:4711 ,method=POST, uri is /v1/chat/completions",
            "no prompt and no tokens",
        ),
        ("{" * 5000, "is not JSON"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line, said):
    """File, line number, what is wrong."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, {"prompt": "abcd"}, "", line)
    assert str(caught.value).startswith(f"{tmp_path / 'requests.jsonl'}:3: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "holds no request"), (b"\n \n", "holds no request"), (b"\xff\xfe{}", "not UTF-8")]
)
def test_a_file_without_requests_is_refused(tmp_path, content, said):
    """Empty, blank, or no text."""
    file = tmp_path / "requests.jsonl"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=said):
        read_lines(file, UNIT, LETTERS)
    with pytest.raises(TraceError, match="No such file"):
        read_traffic(tmp_path / "nothing.jsonl", UNIT, LETTERS)


def test_requests_become_a_trace_without_their_content(tmp_path):
    """Equal prefixes keep equal ids, and no word of a prompt is left."""
    system = "You are a helpful assistant. " * 100
    lines = [{"prompt": system + "secret one", "timestamp": 5}, {"prompt": system + "secret two", "max_tokens": 7}]
    source, target = write(tmp_path, *lines), tmp_path / "trace.jsonl"
    assert convert(source, target, LETTERS) == 2
    assert "secret" not in target.read_text(encoding="utf-8")
    first, second = read_trace(target)
    shared = len(system) // TRACE_BLOCK_TOKENS
    assert first.hash_ids[:shared] == second.hash_ids[:shared]
    assert not set(first.hash_ids[shared:]) & set(second.hash_ids)
    assert (first.timestamp, first.input_length, second.output_length) == (5, len(system) + 10, 7)
    assert is_trace(target)
    with pytest.raises(TraceError, match="is a trace already"):
        convert(target, target, LETTERS)
