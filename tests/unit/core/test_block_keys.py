"""Names of blocks: equal to the host's where they must be, different wherever bytes could differ."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindie_kvpool_plugin.blocks import HashedTokens
from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.simulator.collisions import forged_pairs

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "block_keys.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_host_hash_chain_equals_the_hosts_own_values(case):
    """The values were computed by MindIE-LLM 3.0.0's own hash_block."""
    tokens = np.array(case["tokens"], dtype=np.int64)
    assert block_keys.host_hash_chain(tokens, case["block_size"]) == case["host_hashes"]


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_host_hash_chain_twin_equals_the_hosts_own_values(case):
    """The same without the C extension."""
    tokens = np.array(case["tokens"], dtype=np.int64)
    assert block_keys.host_hash_chain_twin(tokens, case["block_size"]) == case["host_hashes"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tokens=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=40),
    block_size=st.integers(1, 9),
    previous=st.integers(0, (1 << 64) - 1),
    extra=st.integers(0, (1 << 64) - 1),
)
def test_host_hash_chain_equals_its_twin(tokens, block_size, previous, extra):
    """The C extension and Python agree on anything, also when they continue a chain."""
    values = np.array(tokens, dtype=np.int64)
    expected = block_keys.host_hash_chain_twin(values, block_size, previous, extra)
    assert block_keys.host_hash_chain(values, block_size, previous, extra) == expected


def test_host_hash_chain_of_a_long_prompt_equals_its_twin():
    """Above the size from which C gives up the GIL, and from an array that is not contiguous."""
    values = np.random.default_rng(0).integers(0, 1 << 40, 40_000)[::2]
    assert block_keys.host_hash_chain(values, 128) == block_keys.host_hash_chain_twin(values, 128)


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_chains_continue_from_the_block_before(cut):
    """A chain in two parts is the chain of the whole."""
    tokens = np.arange(100)
    hashes, digests = block_keys.host_hash_chain(tokens, 16), block_keys.digest_chain(tokens, 16)
    previous_hash = hashes[cut - 1] if cut else 0
    previous_digest = digests[cut - 1].tobytes() if cut else bytes(16)
    assert block_keys.host_hash_chain(tokens[cut * 16 :], 16, previous_hash) == hashes[cut:]
    assert (block_keys.digest_chain(tokens[cut * 16 :], 16, previous_digest) == digests[cut:]).all()


def test_no_token_is_hashed_twice(monkeypatch):
    """A prompt is hashed when it is loaded; when the sequence ends only its answer is."""
    hashed_tokens = []
    real = block_keys._digests
    tokens = np.arange(100, 200)
    expected = block_keys.digest_chain(tokens, 16)
    monkeypatch.setattr(block_keys, "_digests", lambda t, *more: hashed_tokens.append(len(t) // 8) or real(t, *more))
    notes = HashedTokens()
    assert (block_keys.digests_of(tokens[:48], 16, notes) == expected[:3]).all()
    assert (block_keys.digests_of(tokens, 16, notes) == expected).all()
    assert (block_keys.digests_of(tokens, 16, notes) == expected).all()
    assert hashed_tokens == [48, 48]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    first=st.lists(st.integers(0, 3), max_size=20),
    second=st.lists(st.integers(0, 3), max_size=20),
    shared=st.integers(0, 20),
)
def test_notes_of_other_tokens_are_never_used(first, second, shared):
    """Whatever was noted before, and whatever became of the array it was taken from, the digests are right."""
    notes, one = HashedTokens(), np.array(first, dtype=np.int64)
    block_keys.digests_of(one, 4, notes)
    two = np.array(first[:shared] + second, dtype=np.int64)
    one[:] = 7
    assert np.array_equal(block_keys.digests_of(two, 4, notes), block_keys.digest_chain(two, 4))


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_digest_chain_is_stable(case):
    """A changed digest would orphan every stored block, so it is pinned."""
    tokens = np.array(case["tokens"], dtype=np.int64)
    digests = block_keys.digest_chain(tokens, case["block_size"])
    assert block_keys.hex_digests(digests) == case["digests"]


def test_digest_chain_is_the_documented_sha256_chain():
    """Recomputed here from the words of the docstring."""
    import hashlib

    tokens = np.arange(8, dtype=np.int64)
    previous, expected = bytes(16), []
    for block in (tokens[:4], tokens[4:]):
        previous = hashlib.sha256(block_keys.SALT + previous + block.astype("<i8").tobytes()).digest()[:16]
        expected.append(previous.hex())
    assert block_keys.hex_digests(block_keys.digest_chain(tokens, 4)) == expected


def test_digest_changes_with_any_earlier_token():
    """Two prompts that differ in their first token share no digest."""
    one, two = np.arange(64), np.arange(64)
    two[0] = 99
    same = block_keys.digest_chain(one, 8) == block_keys.digest_chain(two, 8)
    assert not same.all(axis=1).any()


def test_digest_chain_of_a_prefix_is_a_prefix_of_the_chain():
    """What was stored for a shorter prompt is found by a longer one."""
    tokens = np.arange(100)
    assert (block_keys.digest_chain(tokens[:40], 8) == block_keys.digest_chain(tokens, 8)[:5]).all()


def test_colliding_host_hashes_have_different_data_keys():
    """The host's hash collides on purpose in a moment; the data key does not follow, in any later block."""
    for one, two in forged_pairs(50, num_tokens=64, block_size=16, vocab_size=1024):
        assert not np.array_equal(one, two)
        assert block_keys.host_hash_chain(one, 16) == block_keys.host_hash_chain(two, 16)
        assert not (block_keys.digest_chain(one, 16) == block_keys.digest_chain(two, 16)).all(axis=1).any()


def test_keys_have_the_documented_form():
    """Operators find a deployment's entries by prefix."""
    keys = BlockKeys("prod", "org/model a", "f" * 32, "0of2", 128)
    assert keys.data(["ab" * 16]) == [f"prod/{'f' * 32}/{'ab' * 16}/0of2"]
    assert keys.aliases([12345]) == ["prod/org%2Fmodel%20a/12345"]
    assert keys.groups(["ab" * 16]) == [f"prod/{'f' * 32}/{'ab' * 16}"]


def test_fingerprint_differs_when_any_fact_differs():
    """Same model name, other dtype, layers, block size, format or weights: other entries."""
    base = {"model": "m", "weights": "w", "block_size": 128, "segments": [[128, 1, 64, "torch.float16"]], "format": "2"}
    changed = [
        {**base, "model": "n"},
        {**base, "weights": "x"},
        {**base, "block_size": 64},
        {**base, "segments": [[128, 1, 64, "torch.bfloat16"]]},
        {**base, "segments": base["segments"] * 2},
        {**base, "format": "29"},
    ]
    names = [block_keys.fingerprint(facts) for facts in [base, *changed]]
    assert len(set(names)) == len(names)
    assert block_keys.fingerprint(dict(reversed(base.items()))) == names[0]
