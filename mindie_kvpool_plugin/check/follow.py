"""The files a configuration refers to: pool file, weights' config.json, rank table.

Each is read once, with the same tolerant reader, and judged later: here nothing is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.formats import Format, other_format
from mindie_kvpool_plugin.check.situation import Disk, FileFacts, Situation
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.check.text.load import MAX_BYTES, load_bytes
from mindie_kvpool_plugin.memory_room import memory_room
from mindie_kvpool_plugin.options.memcache import key_value_lines
from mindie_kvpool_plugin.options.pool_file import SECTION

MEMCACHE_VARIABLE = "MMC_LOCAL_CONFIG_PATH"
KV_POOL = ("BackendConfig", "kvPoolConfig")


@dataclass(slots=True)
class OtherFile:
    """A file beside config.json.

    Attributes:
        path: where it was looked for.
        facts: what the file system says.
        document: its content; None when it could not be read.
        value: its content as an object; also for ``key = value`` files.
        stands_in: it lies beside config.json, and is taken for one that this machine lacks.
        given: named on the command line.
        format: what it is instead of JSON: "YAML", "INI" or ""; then it has no value.
    """

    path: Path
    facts: FileFacts
    document: Document | None = None
    value: Any = None
    stands_in: bool = False
    given: bool = False
    format: Format = ""


@dataclass(slots=True)
class Followed:
    """What following found.

    Attributes:
        disk: looks at further paths.
        pool: the pool file; None when there is none to look for.
        weights: config.json of each model's weights, by index.
        rank_table: the rank table.
        memcache: MemCache's own file, which the plugin's pool file names; None when it names none.
        free_memory_bytes: memory this machine, or this container, could give to a pool; None when unknown.
    """

    disk: Disk = field(default_factory=Disk)
    pool: OtherFile | None = None
    weights: dict[int, OtherFile] = field(default_factory=dict)
    rank_table: OtherFile | None = None
    free_memory_bytes: int | None = None
    memcache: OtherFile | None = None


def follow(root: Any, situation: Situation, disk: Disk) -> Followed:
    """Read what ``root`` refers to, as far as ``situation`` allows."""
    followed = Followed(disk)
    followed.pool = _pool(root, situation, disk)
    followed.memcache = _memcache(root, followed.pool, situation, disk)
    for index, model in enumerate(_models(root)):
        weights = _weights(model, situation, disk)
        if weights is not None:
            followed.weights[index] = weights
    table = situation.variable("RANK_TABLE_FILE")
    if table and situation.follow:
        followed.rank_table = _read(Path(table), disk)
    followed.free_memory_bytes = memory_room()
    return followed


def _pool(root: Any, situation: Situation, disk: Disk) -> OtherFile | None:
    found = _named_pool(root, situation, disk)
    # MemCache's own file is one of key = value lines
    if found is not None and found.document is not None and _get(root, *KV_POOL, "backend") != "memcache":
        found.format = other_format(found.document.text)
        found.value = None if found.format else found.value
    return found


def _memcache(root: Any, pool: OtherFile | None, situation: Situation, disk: Disk) -> OtherFile | None:
    """MemCache's own file: the variable wins, as at start."""
    if pool is None or _get(root, *KV_POOL, "backend") != "memcache" or not isinstance(_get(pool.value, SECTION), dict):
        return None
    named = situation.variable(MEMCACHE_VARIABLE) or _get(pool.value, "config_path")
    if not situation.follow or not isinstance(named, str) or not named.strip() or "\0" in named:
        return None
    path = Path(named.strip())
    beside = pool.path.parent / path.name
    if not disk.facts(path).exists and not situation.on_server and disk.facts(beside).is_file:
        path = beside
    return _read(path, disk)


def _named_pool(root: Any, situation: Situation, disk: Disk) -> OtherFile | None:
    kv_pool = _get(root, *KV_POOL)
    named, backend = _get(kv_pool, "configPath"), _get(kv_pool, "backend")
    if situation.pool_file is not None:
        return _read(situation.pool_file, disk, given=True, bom_is_error=True)
    is_path = isinstance(named, str) and bool(named.strip()) and "\0" not in named
    if not situation.follow or not is_path or not isinstance(backend, str) or not backend:
        return None
    path = Path(named)
    if not path.is_absolute() and situation.home is not None and not disk.facts(path).exists:
        path = situation.home / path
    folder = situation.config_path.parent if situation.config_path is not None else None
    beside = folder / path.name if folder is not None and path.name else None
    if not disk.facts(path).exists and not situation.on_server and beside is not None and disk.facts(beside).is_file:
        found = _read(beside, disk, bom_is_error=True)
        found.stands_in = True
        return found
    return _read(path, disk, bom_is_error=True)


def _weights(model: Any, situation: Situation, disk: Disk) -> OtherFile | None:
    if situation.weight_config is not None:
        return _read(situation.weight_config, disk, given=True)
    named = _get(model, "modelWeightPath")
    if not situation.follow or not isinstance(named, str) or not named.strip() or "\0" in named:
        return None
    folder = Path(named)
    if not folder.is_absolute() and situation.home is not None:
        folder = situation.home / folder
    return _read(folder / "config.json", disk)


def _read(path: Path, disk: Disk, *, given: bool = False, bom_is_error: bool = False) -> OtherFile:
    facts = disk.facts(path)
    found = OtherFile(path, facts, given=given)
    if not facts.is_file or facts.size > MAX_BYTES:
        return found
    try:
        data = path.read_bytes()
    except OSError:
        return found
    if path.suffix != ".json" and data.lstrip()[:1] != b"{":
        found.value = key_value_lines(data.decode("utf-8", "replace"))
        found.document = Document(str(path), data.decode("utf-8", "replace"))
        return found
    found.document = load_bytes(data, str(path), bom_is_error=bom_is_error)
    found.value = found.document.value
    return found


def _models(root: Any) -> list[Any]:
    entries = _get(root, "BackendConfig", "ModelDeployConfig", "ModelConfig")
    return entries[:10] if isinstance(entries, list) else []


def _get(value: Any, *path: str) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value
