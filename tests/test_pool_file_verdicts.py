"""One verdict per pool file: what the plugin refuses at start is an error of the check, and the other way round.

Every option meets values of every type and spelling; beside them the ways to get names, sections, addresses and
the text itself wrong.  The start is the plugin's own code without library, network and machine: a file is judged.
"""

import json

import pytest

from mindie_kvpool_plugin.check.messages import hint, message
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.pool_file import build, judge, no_backend, read_pool_file
from mindie_kvpool_plugin.pools.mooncake import start as mooncake_start
from mindie_kvpool_plugin.pools.registry import BACKENDS
from tests.check_examples import BASE, changed

MEMCACHE = {"config_path": "/etc/memcache/ascend", "open_timeout_s": 5.0, "_a": "ascend", "_b": True, "kv_pool": {}}
POOL = json.loads((BASE / "kv_pool.json").read_text(encoding="utf-8"))
SECTION_OPTIONS = (
    "namespace", "queue_capacity_blocks", "queue_capacity_bytes", "fence_timeout_s", "in_flight_timeout_s",
    "lookup_first_blocks", "on_pool_unavailable", "lookup_budget_s", "breaker_failures", "breaker_slow_call_s",
    "breaker_retry_s", "agreement", "agreement_timeout_s", "verify_payload", "shards", "staging", "staging_bytes",
)  # fmt: skip
VALUES = [
    None, True, False, 0, 1, -1, 512, 2000, 2001, 1 << 24, (1 << 24) - 1, 2**31, 2**63 - 1, 2**63, 10**40, 10**400,
    0.0, 0.5, 1.0, 1.5, -2.5, 1e3, 1e9, 1e12, 1e300, "", " ", "x", "true", "1", "auto", " auto ", "AUTO", "on", "On",
    "off", "refuse", "run_without", "Run_Without", "per_rank", "tcp", " TCP ", "rdma", "ascend", "Ascend", "smoke",
    "P2PHANDSHAKE", "a b", "ä", "a" * 64, "a" * 65, "default", " default", [], {}, ["x"], {"a": 1},
]  # fmt: skip
SIZES = [
    "4GB", "4gb", "4 GB", " 4GB ", "4Gb", "1024", "0", "0GB", "16MB", "15MB", "1.5GB", "1.GB", ".5GB", "4G", "4GiB",
    "4 giga", "1e9", "-4GB", "+4GB", "4,5GB", "4_000", "0x10", "４GB", "4TB", "4KB", "4b", "4PB", "9" * 30 + "GB",
    "9" * 400, "4GB4", "GB", "4\tGB", "16777216B", "1048576", "8388607TB", "9000000TB",
]  # fmt: skip
SIZE_OPTIONS = ("global_segment_size", "local_buffer_size", "kv_pool.queue_capacity_bytes", "kv_pool.staging_bytes")
ADDRESSES = [
    "10.0.0.1:50051", "10.0.0.1", "http://10.0.0.1:50051", "host:", "host:0", "host:65535", "host:65536", "host:70000",
    "host:port", ":50051", "a b:1", "[::1]:50051", "::1", "::1:5", "[::1]", "[::1", "etcd://a:1;b:2", "etcd://a:1;b",
    "etcd://", "tcp://a:1", "host:１", "a:b:c", "host/x:1", "localhost", "localhost:1", " host:1 ", "host:000001",
]  # fmt: skip
AGREEMENTS = [
    "tcp://host:1",
    "tcp://host",
    "tcp://:1",
    "tcp://a b:1",
    "http://a:1",
    "/tmp/x",
    "tcp://[::1]:99999",
    "tcp://h:",
]
NAMES = [
    "namespce", "Namespace", "name_space", "queue_capacity_block", "stagin", "verifypayload", "something_else", "_note",
    "#note", "// note", "comment", "comments", "$schema", "$id", "protocol", "local_hostname", "", " ", "ä", "kv_pool",
]  # fmt: skip
# beside the start's sentence the check says how to go on: add, rename, move
FIX_OF_ITS_OWN = {"SC-01", "SC-06", "HC-82"}
# of what is no JSON, or a number of hundreds of digits, the check says more: where, and how to repair it
OF_THE_TEXT = ("JS-23", "is not valid JSON", "cannot read the pool file", "expected one JSON object")
TEXTS = {
    "bom": lambda good: b"\xef\xbb\xbf" + good,
    "utf-16": lambda good: good.decode().encode("utf-16"),
    "latin": lambda good: good.replace(b'"ascend"', b'"\xe9"'),
    "empty": lambda good: b"",
    "blank": lambda good: b" \n",
    "list": lambda good: b"[" + good + b"]",
    "number": lambda good: b"5",
    "null": lambda good: b"null",
    "trailing comma": lambda good: good.rstrip()[:-1] + b",}",
    "comment": lambda good: good.replace(b"{", b"{ // c\n", 1),
    "garbage": lambda good: good + b"}",
    "unclosed": lambda good: good.rstrip()[:-1],
    "single quotes": lambda good: good.replace(b'"', b"'"),
    "twice": lambda good: good.replace(b"{", b'{"protocol": 5, ', 1),
    "twice, the last wrong": lambda good: good.rstrip()[:-1] + b', "protocol": 5}',
    "nan": lambda good: good.replace(b"{", b'{"x": NaN, ', 1),
    "infinity": lambda good: good.replace(b"{", b'{"x": -Infinity, ', 1),
    "too large": lambda good: good.replace(b"{", b'{"x": 1e999, ', 1),
    "surrogate": lambda good: good.replace(b"{", b'{"x": "\\ud83d", ', 1),
    "pair": lambda good: good.replace(b"{", b'{"x": "\\ud83d\\ude00", ', 1),
    "tab in a text": lambda good: good.replace(b'"ascend"', b'"asc\tend"'),
    "deep": lambda good: good.replace(b"{", b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b", ", 1),
    "python": lambda good: good.replace(b"true", b"True"),
    "windows": lambda good: good.replace(b"\n", b"\r\n"),
}  # fmt: skip


def changed_pool(name, value):
    section, _, option = name.rpartition(".")
    if not section:
        return POOL | {option: value}
    return POOL | {section: POOL[section] | {option: value}}


def without(*names):
    return {key: value for key, value in POOL.items() if key not in names}


def contents():
    options = [*(name for name in POOL if name != "kv_pool"), "max_slices_in_flight", "rpc_timeout_s"]
    for name in [*options, *(f"kv_pool.{name}" for name in SECTION_OPTIONS)]:
        yield from ((f"{name}={str(value)[:20]!r}", changed_pool(name, value)) for value in VALUES)
    for name in SIZE_OPTIONS:
        yield from ((f"{name}={size[:20]}", changed_pool(name, size)) for size in SIZES)
    for name in ("master_server_address", "local_hostname"):
        yield from ((f"{name}={address}", changed_pool(name, address)) for address in ADDRESSES)
    yield from ((f"agreement={value}", changed_pool("kv_pool.agreement", value)) for value in AGREEMENTS)
    for name in NAMES:
        yield f"section knows {name!r}", changed_pool(f"kv_pool.{name}", 1)
        if name != "kv_pool":
            yield f"file knows {name!r}", POOL | {name: POOL.get(name, 1)}
    yield from ((f"kv_pool={value!r}", POOL | {"kv_pool": value}) for value in (None, 5, True, "x", [], ["x"]))
    yield from ((f"no {name}", without(name)) for name in POOL if name != "kv_pool")
    yield "only the section", {"kv_pool": {}}
    for protocol in ("ascend", "tcp", "ASCEND"):
        for staging in ("auto", "on", "off", "ON"):
            section = {"verify_payload": True, "staging": staging}
            yield f"verified, {protocol}, {staging}", POOL | {"protocol": protocol, "kv_pool": section}


def memcache_contents():
    for name in ("config_path", "open_timeout_s"):
        yield from ((f"{name}={str(value)[:20]!r}", MEMCACHE | {name: value}) for value in VALUES)
    for name in ("config_pat", "ock.mmc.meta_service_url", "namespace", "_note"):
        yield f"file knows {name!r}", MEMCACHE | {name: "x"}
        yield f"section knows {name!r}", MEMCACHE | {"kv_pool": {name: "x"}}
    yield "no config_path", {"kv_pool": {}}
    yield "mooncake's keys", POOL
    for staging in ("auto", "on", "off"):
        yield f"verified, {staging}", MEMCACHE | {"kv_pool": {"verify_payload": True, "staging": staging}}


def files():
    """(name, backend, bytes) of every pool file that is tried."""
    for backend, pool in (("mooncake", POOL), ("memcache", MEMCACHE), ("unifiedcache", MEMCACHE)):
        good = json.dumps(pool, indent=1).encode()
        yield f"{backend}: as it should be", backend, good
        yield from ((f"{backend}: {name}", backend, damage(good)) for name, damage in TEXTS.items())
    yield from ((f"mooncake: {name}", "mooncake", json.dumps(value).encode()) for name, value in contents())
    yield from ((f"memcache: {name}", "memcache", json.dumps(value).encode()) for name, value in memcache_contents())


@pytest.fixture
def start(monkeypatch):
    """The plugin's start-up reading of a file, on a machine that has all a file may ask for."""
    monkeypatch.setattr(mooncake_start.os, "sysconf", lambda name: 2**33)
    monkeypatch.setattr(mooncake_start, "has_rdma_device", lambda: True)

    def words_of_refusal(path, backend):
        try:
            pool_file = read_pool_file(str(path))
            if backend not in BACKENDS:
                raise ConfigError(no_backend(backend).told)
            options = build(BACKENDS[backend].options, pool_file.backend_keys, "", strict=False)
            if backend == "mooncake":
                for role in ("scheduler", "worker"):
                    mooncake_start.check_options(options, "", role)
            section = pool_file.options
            is_direct = backend == "memcache" or options.protocol == "ascend"
            if section.verify_payload and section.staging != "on" and is_direct:
                (payload,) = (each for each in judge(json.loads(path.read_text()), backend) if each.kind == "payload")
                raise ConfigError(payload.told)  # as host.worker does where the cache lies in an NPU's memory
        except ConfigError as error:
            return str(error)
        return ""

    return words_of_refusal


def says(finding, words):
    """Whether a finding tells what start-up told: the same sentence, and the same fix where there is one."""
    sentence, fix = message(finding, "en"), hint(finding, "en")
    if finding.variant == "several":
        return all(f"{key} is missing" in words for key in finding.params["keys"].split(", "))
    is_said = sentence in words and (fix in words or finding.code in FIX_OF_ITS_OWN)
    return is_said or finding.code in OF_THE_TEXT or any(mark in words for mark in OF_THE_TEXT)


def test_plugin_and_check_agree_on_every_pool_file(start, tmp_path):
    """Refused at start if and only if the check reports an error; with the same words, and where it can with more."""
    path = tmp_path / "kv_pool.json"
    parted, tried, refused = [], 0, 0
    for name, backend, data in files():
        path.write_bytes(data)
        wanted = start(path, backend)
        changes = {"K.backend": backend, "K.configPath": str(path)}
        changes["M.plugin_params"] = '{"plugin_type":"prefix_cache,kv_pool"}'
        config = json.dumps(changed(changes)).encode()
        findings = check_bytes(config, "config.json", Situation()).findings
        errors = [finding for finding in findings if finding.severity == "error"]
        tried += 1
        refused += bool(wanted)
        if bool(wanted) != bool(errors) or (wanted and not any(says(each, wanted) for each in errors)):
            told = [f"{f.code} {message(f, 'en')} | {hint(f, 'en')}" for f in errors]
            parted.append(f"{name}: start says {wanted or 'nothing'!r}, the check {told}")
    assert not parted, f"{len(parted)} of {tried}\n" + "\n".join(parted)
    assert refused > 900
    assert tried - refused > 300
