"""The one reading of a pool file: all problems as data, the first one raised, each with place, value and fix."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.pool_file import has_section, judge, parse, read_pool_file
from mindie_kvpool_plugin.options.records import KvPoolOptions, MooncakeOptions, defaults
from mindie_kvpool_plugin.options.sizes import parse_size

GOOD = {"local_hostname": "10.0.0.1", "master_server_address": "10.0.0.2:50051", "kv_pool": {}}


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "kv_pool.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(path)

    return write


def test_read_pool_file_gives_records_and_the_backends_own_keys(written):
    """What the section leaves out has the records' defaults."""
    found = read_pool_file(written(GOOD | {"kv_pool": {"queue_capacity_bytes": "1 GB", "shards": " Per_Rank "}}))
    assert found.options == KvPoolOptions(queue_capacity_bytes=1024**3, shards="per_rank")
    assert found.backend_keys == {key: value for key, value in GOOD.items() if key != "kv_pool"}
    assert read_pool_file(written({"x": 1})).options is None


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"stagin": "on"}, ("knows no key", '"stagin"', 'did you mean "staging"')),
        ({"something": 1}, ("knows no key", "known: namespace")),
        ({"fence_timeout_s": "5"}, ("kv_pool.fence_timeout_s", '"5"', "a positive number")),
        ({"breaker_failures": 1.0}, ("kv_pool.breaker_failures", "1.0", "a positive integer")),
        ({"lookup_budget_s": 1e12}, ("kv_pool.lookup_budget_s", "up to 1e+09")),
        ({"staging": "maybe"}, ("kv_pool.staging", '"maybe"', "one of: auto, on, off")),
        ({"namespace": "a b"}, ("kv_pool.namespace", '"a b"', "letters, digits")),
        ({"agreement": "here"}, ("kv_pool.agreement", '"here"', "tcp://host:port")),
        ({"staging_bytes": "4 gibibytes"}, ("kv_pool.staging_bytes", '"4GB"')),
        (None, ("kv_pool is null", "an object")),
    ],
)
def test_read_pool_file_names_place_value_and_expectation(written, section, words):
    """The first problem, as a message that needs no other."""
    path = written(GOOD | {"kv_pool": section})
    with pytest.raises(ConfigError) as caught:
        read_pool_file(path)
    for word in (path, *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not valid JSON"),
        (b"[]", "expected one JSON object"),
        (b'{"x": NaN}', "NaN"),
        (b'{"x": 1e999}', "1e999"),
        (b'{"x": "\\ud800"}', "surrogate"),
        (b'{"x": "\xe9"}', "UTF-8"),
    ],
)
def test_read_pool_file_refuses_what_is_no_json(written, data, words):
    """As MindIE-LLM's own reader would, and told."""
    with pytest.raises(ConfigError, match=words):
        read_pool_file(written(data))


def test_judge_yields_every_problem_with_its_place():
    """One list for the check: values, names, what is missing, and what does not go together."""
    content = {
        "local_hostname": "10.0.0.1",
        "protocol": "smoke",
        "use_ascend_direct": False,
        "global_segment_size": "1MB",
        "kv_pool": {"stagin": 1, "fence_timeout_s": -1},
    }
    found = {(problem.kind, problem.path) for problem in judge(content, "mooncake")}
    assert found == {
        ("unknown", ("kv_pool", "stagin")),
        ("range", ("kv_pool", "fence_timeout_s")),
        ("choice", ("protocol",)),
        ("direct", ("use_ascend_direct",)),
        ("segment", ("global_segment_size",)),
        ("missing", ("master_server_address",)),
    }
    assert judge(GOOD, "mooncake") == []
    assert [problem.kind for problem in judge(GOOD, "unifiedcache")] == ["backend"]
    assert [problem.path for problem in judge(GOOD, "memcache")] == [("config_path",)]
    assert judge({"ock.mmc.log_level": "info"}, "memcache") == []


def test_notes_in_the_section_are_no_options(written):
    """JSON has no comments, so people use keys."""
    notes = {"_note": 1, "// x": 2, "#": 3, "comment": 4, "$schema": "x"}
    assert read_pool_file(written(GOOD | {"kv_pool": notes})).options == KvPoolOptions()


def test_has_section_answers_for_every_file(written):
    """Present even as {}; what cannot be read is the caller's choice."""
    assert has_section(written(GOOD), unreadable=False)
    assert not has_section(written({}), unreadable=True)
    assert has_section(written(b"{"), unreadable=True)
    assert not has_section("/none.json", unreadable=False)


@pytest.mark.parametrize(
    ("value", "size"),
    [(0, 0), ("4GB", 4 << 30), (" 1.5 kb ", 1536), ("7", 7), (-1, None), (True, None), (1.0, None), ("4G", None),
     ("４GB", None), (2**63, None), ("9" * 400, None), (None, None)],
)  # fmt: skip
def test_sizes_have_one_grammar(value, size):
    """Integers, and texts with a unit in powers of 1024, below 2^63."""
    assert parse_size(value) == size


def test_every_option_has_one_default():
    """The records'; what has none is demanded."""
    assert defaults(KvPoolOptions) == {name: getattr(KvPoolOptions(), name) for name in KvPoolOptions.__slots__}
    assert set(MooncakeOptions.__slots__) - set(defaults(MooncakeOptions)) == {
        "local_hostname",
        "master_server_address",
    }


def test_parse_takes_a_byte_order_mark():
    """Windows editors leave one, and nothing else reads the file."""
    assert parse(b"\xef\xbb\xbf{}") == {}


def test_importing_the_reading_is_cheap():
    """Every worker imports it: nothing of the check comes with it."""
    code = (
        "import sys, mindie_kvpool_plugin.options.pool_file;"
        "assert not {'lark', 'jsonschema', 'click', 'numpy', 'torch'} & set(sys.modules)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
