"""Any bytes as config.json or pool file: an answer, never a traceback.

Hypothesis cuts, joins and damages real files.  A short run here; a long one with
``KVPOOL_FUZZ_EXAMPLES=200000 pytest tests/fuzz``.
"""

import json
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.repair import repair
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.cli.reporters import REPORTERS
from tests.check_examples import EXAMPLES as EXAMPLES_FOLDER
from tests.check_examples import ROOT, all_cases, config_bytes, file_bytes, read

EXAMPLES = int(os.environ.get("KVPOOL_FUZZ_EXAMPLES", "300"))
CASES = all_cases()
SEEDS = [data for data in map(config_bytes, CASES) if len(data) < 4000]
SEEDS += [path.read_bytes() for path in sorted((ROOT / "conf_examples").rglob("*.json"))]
POOLS = [file_bytes(case, "kv_pool.json") for case in CASES if "kv_pool.json" in case.get("files", {})]
SPLICES = [
    b"", b"{", b"}", b"[", b"]", b'"', b"'", b",", b":", b"\\", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"1e999",
    b"-", b"1025.0", b"null", b"true", b"//", b"/*", b"#", b"...", "：".encode(), "“".encode(), "\u00a0".encode(),
    b"\\ud800", b'"plugin_params"', b'"{\\"plugin_type\\":\\"mtp,\\"}"', b"[" * 50, b'{"a":' * 50, b"9" * 400,
    b'"kv_pool"', b'"port"', b"@", b"{}", b"[]", b'""', b"NaN", "²".encode(), b"1e400", b'"0000000000000000000002"',
]  # fmt: skip

damage = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(0, 60), st.one_of(st.sampled_from(SPLICES), st.binary(max_size=8))),
    max_size=6,
)


@st.composite
def damaged(draw, seeds):
    data = draw(st.sampled_from(seeds))
    if draw(st.integers(0, 3)):  # a short piece costs less and is broken in more places
        start = draw(st.integers(0, len(data)))
        data = data[start : start + draw(st.integers(0, 300))]
    for position, length, splice in draw(damage):
        at = position % (len(data) + 1)
        data = data[:at] + splice + data[at + length :]
    return data


def situation(draw_flags):
    follow, dies, version = draw_flags
    env = {"NPU_MEMORY_FRACTION": "0.9x", "TASK_QUEUE_ENABLE": "0"} if dies else None
    return Situation(host_version=version, env=env, dies=dies or None, follow=follow)


flags = st.tuples(
    st.booleans(), st.sampled_from([0, 1, 128, 600]), st.sampled_from(["3.0.0", "3.0.0.beta.2", "2.2.RC1"])
)
lasting = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES <= 300
)  # fmt: skip


FOR_PROGRAMS = {"json", "sarif", "gitlab"}
reports = st.tuples(st.sampled_from(sorted(REPORTERS)), st.sampled_from(["en", "zh"]))


@lasting
@given(data=damaged(SEEDS), chosen=flags, report=reports, wants_repair=st.booleans())
def test_any_config_is_answered(data, chosen, report, wants_repair):
    """A verdict, a report that can be printed, and a repair that can be checked again."""
    form, lang = report
    result = check_bytes(data, "config.json", situation(chosen))
    assert result.verdict in {"ok", "warning", "error"}
    text = REPORTERS[form]([result], lang)
    text.encode("utf-8")
    if form in FOR_PROGRAMS:
        json.loads(text)
    if wants_repair:
        done = repair(data, "config.json", situation(chosen))
        json.loads(REPORTERS["json"]([check_bytes(done.data, "config.json", situation(chosen))], lang))


CONFIG = config_bytes(read(EXAMPLES_FOLDER / "KP-03" / "right.json"))
TABLES = [path.read_bytes() for path in sorted(ROOT.rglob("rank_table.json"))]


@lasting
@given(data=damaged(POOLS), suffix=st.sampled_from([".json", ".conf"]))
def test_any_pool_file_is_answered(data, suffix, tmp_path_factory):
    """The same for the file behind configPath."""
    path = tmp_path_factory.getbasetemp() / f"pool{suffix}"
    path.write_bytes(data)
    result = check_bytes(CONFIG, "config.json", Situation(pool_file=path))
    REPORTERS["text"]([result], "zh").encode("utf-8")


NODES = json.loads(config_bytes(read(EXAMPLES_FOLDER / "HC-67" / "right.json")))


@lasting
@given(table=damaged(TABLES), weights=damaged(TABLES + POOLS))
def test_any_rank_table_and_weight_config_is_answered(table, weights, tmp_path_factory):
    """And for the files the environment and the flags name."""
    folder = tmp_path_factory.getbasetemp()
    (folder / "table.json").write_bytes(table)
    (folder / "weights.json").write_bytes(weights)
    env = {"RANK_TABLE_FILE": str(folder / "table.json")}
    chosen = Situation(env=env, weight_config=folder / "weights.json")
    REPORTERS["json"]([check_bytes(json.dumps(NODES).encode(), "config.json", chosen)], "en").encode("utf-8")
