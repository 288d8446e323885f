"""Flags that fit a pool file, and what is said of others."""

from dataclasses import replace

import pytest

from mindie_kvpool_plugin.check.messages import LANGUAGES, has_text
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.services.master_flags import Bound, fitting, given, judge, lease, merged, seconds

OPTIONS = MooncakeOptions(local_hostname="10.0.0.2", master_server_address="10.0.0.1:50051")
BOUND = Bound("10.0.0.1", 50051, "127.0.0.1", 9003)


def flags(options=OPTIONS, with_ssd=False):
    return fitting(options, BOUND, with_ssd=with_ssd)


def words(found):
    return [flag.text for flag in found]


def test_flags_follow_the_pool_file():
    """Its address and port, the measured eviction, the admin server closed."""
    assert {
        "--rpc_address=10.0.0.1",
        "--rpc_port=50051",
        "--metrics_host=127.0.0.1",
        "--eviction_high_watermark_ratio=0.95",
        "--eviction_ratio=0.02",
        "--default_kv_lease_ttl=10s",
        "--client_ttl=10",
        "--minloglevel=2",
    } <= set(words(flags()))


def test_ssd_flags_come_with_the_option_only():
    """Both or none."""
    ssd = ["--enable_offload=true", "--offload_on_evict=true"]
    assert words(flags(with_ssd=True)) == words(flags()) + ssd


def test_every_flag_has_a_reason_in_both_languages():
    """What --print says."""
    missing = [
        (flag.name, lang)
        for flag in flags(with_ssd=True)
        for lang in LANGUAGES
        if not has_text(f"master.why.{flag.name}", lang)
    ]
    assert missing == []


def test_lease_exceeds_what_the_transport_allows(monkeypatch):
    """Longer time limits of Ascend's transport make it longer."""
    assert lease(OPTIONS) == 10
    monkeypatch.setenv("ASCEND_TRANSFER_TIMEOUT", "30000")
    assert lease(OPTIONS) > 33
    assert lease(replace(OPTIONS, protocol="tcp")) == 10
    monkeypatch.setenv("ASCEND_TRANSFER_TIMEOUT", "soon")
    assert lease(OPTIONS) == 10


@pytest.mark.parametrize(("text", "value"), [("5s", 5), ("500ms", 0.5), ("2m", 120), ("1500", 1.5), ("soon", None)])
def test_durations_are_read_as_the_master_reads_them(text, value):
    """Bare numbers are milliseconds."""
    assert seconds(text) == value


def test_flags_are_read_as_gflags_reads_them():
    """One dash or two, with = or behind a blank, or bare."""
    assert given(["--a=1", "-b", "2", "--c", "--d=x=y"]) == {"a": "1", "b": "2", "c": "", "d": "x=y"}


def test_added_flags_replace_ours():
    """None is there twice, and the others are passed on as they are."""
    line = merged(flags(), ["--client_ttl=30", "--new_flag"])
    assert "--client_ttl=10" not in line
    assert line[-2:] == ["--client_ttl=30", "--new_flag"]


@pytest.mark.parametrize(
    ("extra", "kind", "refuses"),
    [
        ("--rpc_port=50052", "port", True),
        ("--port=50052", "port", True),
        ("--rpc_address=0.0.0.0", "own_option", True),
        ("--metrics_host=0.0.0.0", "own_option", True),
        ("--eviction_ratio=5", "ratio", True),
        ("--eviction_ratio=much", "ratio", True),
        ("--enable_offload=false", "offload", True),
        ("--enable_kv_events", "kv_events", False),
        ("--memory_allocator=cachelib", "cachelib", False),
        ("--default_kv_lease_ttl=1s", "lease", False),
        ("--config_path=master.yaml", "config_path", False),
        ("--client_ttl=30", "client_ttl", False),
        ("--client_ttl=5", "replaces", False),
    ],
)
def test_contradictions_are_named(extra, kind, refuses):
    """Those that cannot work are refused; each has a sentence in both languages."""
    found = list(judge([extra], OPTIONS, flags(with_ssd=True)))
    assert [(each.kind, each.refuses) for each in found] == [(kind, refuses)]
    assert all(has_text(f"master.extra.{kind}", lang) for lang in LANGUAGES)


@pytest.mark.parametrize("extra", ["--rpc_port=50051", "--enable_kv_events=false", "--a_flag_of_next_year=1"])
def test_nothing_is_said_of_what_fits_or_is_unknown(extra):
    """The master knows its flags best."""
    assert list(judge([extra], OPTIONS, flags())) == []


def test_a_metadata_server_is_nobody_elses_business():
    """The master does not start one by itself."""
    options = replace(OPTIONS, metadata_server="http://10.0.0.1:8080/metadata")
    assert [each.kind for each in judge([], options, flags(options))] == ["metadata_server"]
    assert list(judge(["--enable_http_metadata_server=true"], options, flags(options))) == []
