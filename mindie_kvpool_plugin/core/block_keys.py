"""Every name a block has: the host's 64-bit hash, our 128-bit digest, and the keys made of them.

The host's hash is only ever used to ask ("does the pool hold this block?"): it is linear in places
and collides on purpose in microseconds.  What is loaded is named by the digest, a SHA-256 chain
over the block's tokens and all before them, under a fingerprint of everything else that shapes the
bytes.  So a collision of the host's hash costs one recompute and never delivers a wrong block.

Keys: data ``<namespace>/<fingerprint>/<digest>/<shard>``, alias ``<namespace>/<model>/<host hash>``.
The alias is a tiny object the scheduler asks for; it is written after the data.

Where ``kv_pool.why_requests`` is on, a service also leaves its name: tiny objects, one for each beginning of
``<namespace>:<fingerprint>:<shard>;`` behind ``mindie-kvpool/stores/``.  No pool can list its keys, but any pool can be
asked letter by letter which of them exist.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from mindie_kvpool_plugin.blocks import Adapter, Digests, HashedTokens, Tokens
from mindie_kvpool_plugin.native import native

SALT = b"mindie-kvpool digest 1"
DIGEST_BYTES = 16
NO_ROOT = bytes(DIGEST_BYTES)
"""Begins the chain of a sequence without adapter."""

_MASK = (1 << 64) - 1
_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # of the host: prefix_cache_plugin.py hash_combine, math_utils.h
_NO_HASH = 0  # the host's mark for "no hash"; a seed that becomes it is replaced by 1
NO_ADAPTER = 0


def host_hash_chain(tokens: Tokens, block_size: int, previous: int = _NO_HASH, extra: int = NO_ADAPTER) -> list[int]:
    """The host's hash of every full block, equal bit for bit to its C++ and Python ones.

    Args:
        tokens: int64 [any], contiguous, from token 0 or behind the block that ``previous`` names.
        block_size: tokens per block.
        previous: hash of the block before, 0 for none.
        extra: the host's number of a LoRA adapter, 0 for none.
    """
    if native is None:
        return host_hash_chain_twin(tokens, block_size, previous, extra)
    values = np.ascontiguousarray(tokens, dtype=np.int64)
    hashes = np.empty(len(values) // block_size, dtype=np.uint64)
    native.hash_chain(values.ctypes.data, len(hashes), block_size, previous, extra, hashes.ctypes.data)
    found: list[int] = hashes.tolist()
    return found


def host_hash_chain_twin(
    tokens: Tokens, block_size: int, previous: int = _NO_HASH, extra: int = NO_ADAPTER
) -> list[int]:
    """``host_hash_chain`` without the C extension."""
    hashes = []
    values = tokens.tolist()
    for start in range(0, len(values) - block_size + 1, block_size):
        seed = _NO_HASH
        if previous != _NO_HASH:
            seed = _combine(seed, previous)
        for value in values[start : start + block_size]:
            seed = _combine(seed, value)
        previous = _combine(seed, extra)
        hashes.append(previous)
    return hashes


def _combine(seed: int, value: int) -> int:
    seed ^= (value + _GOLDEN_RATIO + (seed << 6) + (seed >> 2)) & _MASK
    return seed or 1


def digest_chain(tokens: Tokens, block_size: int, previous: bytes = NO_ROOT) -> Digests:
    """The digest of every full block: the first 128 bits of SHA-256(salt, previous digest, tokens).

    Args:
        tokens: int64 [any], from token 0 or behind the block that ``previous`` names; hashed as little-endian int64.
        block_size: tokens per block.
        previous: digest of the block before.

    Returns:
        uint64 [len(tokens) // block_size, 2], the digest's bytes in order.
    """
    return _digests(_text(tokens, block_size), block_size, previous)


def digests_of(tokens: Tokens, block_size: int, hashed: HashedTokens | None, adapter: Adapter | None = None) -> Digests:
    """``digest_chain`` that takes over what is noted of the same tokens, and notes the rest.

    Notes are compared token by token, which is many times as fast as hashing: whatever the host did with
    the sequence meanwhile, a digest names the tokens given here.  With an adapter the chain begins with its root;
    a sequence keeps its adapter, and so do its notes.
    """
    text = _text(tokens, block_size)
    root = adapter.root if adapter is not None else NO_ROOT
    if hashed is None:
        return _digests(text, block_size, root)
    known = hashed.known
    if known is None or not known[0] or not text.startswith(known[0]):
        digests = _digests(text, block_size, root)
    elif len(known[0]) == len(text):
        return known[1]
    else:
        rest = _digests(text[len(known[0]) :], block_size, known[1][-1].tobytes())
        digests = np.concatenate([known[1], rest])
    hashed.known = text, digests
    return digests


def _text(tokens: Tokens, block_size: int) -> bytes:
    """The tokens of the full blocks as they are hashed; a copy."""
    return np.ascontiguousarray(tokens[: len(tokens) // block_size * block_size], dtype="<i8").tobytes()


def _digests(text: bytes, block_size: int, previous: bytes = NO_ROOT) -> Digests:
    block_bytes = block_size * 8
    digest = previous
    chain = []
    for at in range(0, len(text), block_bytes):
        digest = hashlib.sha256(SALT + digest + text[at : at + block_bytes]).digest()[:DIGEST_BYTES]
        chain.append(digest)
    return np.frombuffer(b"".join(chain), dtype=np.uint64).reshape(-1, 2)


def hex_digests(digests: Digests) -> list[str]:
    """Each digest as 32 hexadecimal characters."""
    text = np.ascontiguousarray(digests).tobytes().hex()
    width = 2 * DIGEST_BYTES
    return [text[at : at + width] for at in range(0, len(text), width)]


def fingerprint(facts: Mapping[str, Any]) -> str:
    """A name for everything besides tokens that changes a block's bytes: 32 hexadecimal characters.

    Args:
        facts: JSON values (``host.model_facts`` collects them); the same facts give the same name
            in every process and version of Python.
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def alias_keys(namespace: str, model_name: str, host_hashes: Sequence[int | str]) -> list[str]:
    """The keys a scheduler asks for, one per block."""
    prefix = f"{namespace}/{quote(model_name, safe='')}/"
    return [f"{prefix}{value}" for value in host_hashes]


class Service(NamedTuple):
    """What its data keys begin and end with tells who stores them.

    Attributes:
        namespace: of its pool file.
        fingerprint: of its weights, layout and versions.
        shard: of the rank that announces its blocks.
    """

    namespace: str
    fingerprint: str
    shard: str


_STORES = "mindie-kvpool/stores/"
_SEPARATOR, _END = ":", ";"
_ALPHABETS = (
    string.ascii_letters + string.digits + "._-" + _SEPARATOR,
    "0123456789abcdef" + _SEPARATOR,
    string.digits + "of" + _END,
)
"""Of each part of a service's name and what follows it."""


def service_keys(service: Service) -> list[str]:
    """The objects by which others find a service's name."""
    text = _SEPARATOR.join(service) + _END
    return [_STORES + text[:end] for end in range(1, len(text) + 1)]


def next_service_keys(begun: str) -> list[str]:
    """All keys that may follow this one of ``service_keys``; ``""`` begins."""
    alphabet = _ALPHABETS[min(begun.count(_SEPARATOR), len(_ALPHABETS) - 1)]
    return [(begun or _STORES) + letter for letter in alphabet]


def service_of(key: str) -> Service | None:
    """The service whose name a key of ``service_keys`` spells to its end."""
    parts = key.removeprefix(_STORES).removesuffix(_END).split(_SEPARATOR)
    return Service(*parts) if key.endswith(_END) and len(parts) == len(Service._fields) else None


def data_keys(service: Service, hexes: Sequence[str]) -> list[str]:
    """The data key of each digest."""
    prefix, suffix = f"{service.namespace}/{service.fingerprint}/", f"/{service.shard}"
    return [f"{prefix}{text}{suffix}" for text in hexes]


class BlockKeys:
    """The keys one rank uses for its blocks.

    Attributes:
        block_size: tokens per block.
        service: whose they are.
    """

    def __init__(self, namespace: str, model_name: str, model_fingerprint: str, shard: str, block_size: int) -> None:
        self.block_size = block_size
        self.service = Service(namespace, model_fingerprint, shard)
        self._model_name = model_name

    def data(self, hexes: Sequence[str]) -> list[str]:
        """The data key of each digest."""
        return data_keys(self.service, hexes)

    def aliases(self, host_hashes: Sequence[int]) -> list[str]:
        """The alias key of each host hash."""
        return alias_keys(self.service.namespace, self._model_name, host_hashes)

    def groups(self, hexes: Sequence[str]) -> list[str]:
        """The group each block's alias and shards belong to, so that they are kept and evicted together."""
        prefix = f"{self.service.namespace}/{self.service.fingerprint}/"
        return [f"{prefix}{text}" for text in hexes]
