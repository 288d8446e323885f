"""What rules look at: the configuration by its sections, whatever is in them.

Every accessor answers for every input: a section of the wrong type reads as empty, a value of the
wrong type as absent.  The schema stage has already said that the type is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.follow import Followed
from mindie_kvpool_plugin.check.rules.plugins import Plugins, read_plugins
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.options.pool_file import judge
from mindie_kvpool_plugin.options.problems import Problem

Section = dict[str, Any]

KV_POOL = "kv_pool"
# Node names in findings
S, B, K, D, C, M = "ServerConfig", "BackendConfig", "kvPoolConfig", "ModelDeployConfig", "ScheduleConfig", "ModelConfig"


def section(value: Any, *path: str) -> Section:
    """The object at ``path``; {} when there is none."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def integer(values: Section, key: str, default: int | None = None) -> int | None:
    """A real integer; ``default`` when the key is absent, None when it is something else."""
    if key not in values:
        return default
    value = values[key]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def coerced(values: Section, key: str, default: int) -> int | None:
    """A number as the host takes it where it checks no type: fractions are cut, true is 1."""
    value = values.get(key, default)
    return int(value) if isinstance(value, (bool, int, float)) and abs(value) < 2**53 else None


def text(values: Section, key: str) -> str:
    """A text; empty when absent or of another type."""
    value = values.get(key)
    return value if isinstance(value, str) else ""


def worker_integer(values: Section, key: str) -> int | None:
    """An integer as the worker gets it: the host hands it over as text, and cuts fractions.

    None when absent, dropped by the host (null, list, object) or not a number.
    """
    value = values.get(key)
    if isinstance(value, (bool, float)):
        return int(value) if abs(value) < 2**31 else None
    if isinstance(value, int):
        return (value + 2**31) % 2**32 - 2**31
    if isinstance(value, str):
        try:
            return int(value) if len(value) < 12 else None
        except ValueError:
            return None
    return None


@dataclass
class View:
    """The configuration, its situation, and the files it refers to.

    Attributes:
        root: the whole value.
        situation: flags and environment.
        followed: files that were read.
    """

    root: Any
    situation: Situation
    followed: Followed = field(default_factory=Followed)

    @cached_property
    def server(self) -> Section:
        """ServerConfig."""
        return section(self.root, S)

    @cached_property
    def backend(self) -> Section:
        """BackendConfig."""
        return section(self.root, B)

    @cached_property
    def kv_pool(self) -> Section:
        """BackendConfig.kvPoolConfig."""
        return section(self.root, B, K)

    @cached_property
    def pool_problems(self) -> list[Problem]:
        """What the running plugin would refuse of the pool file; [] where it could not be read or has no section."""
        pool = self.followed.pool
        value = pool.value if self.is_pool and pool is not None else None
        return judge(value, text(self.kv_pool, "backend")) if isinstance(value, dict) and KV_POOL in value else []

    @cached_property
    def deploy(self) -> Section:
        """BackendConfig.ModelDeployConfig."""
        return section(self.root, B, D)

    @cached_property
    def schedule(self) -> Section:
        """BackendConfig.ScheduleConfig."""
        return section(self.root, B, C)

    @cached_property
    def models(self) -> list[Section]:
        """Entries of ModelConfig, at most ten: an entry that is no object reads as empty."""
        entries = self.deploy.get(M)
        return [entry if isinstance(entry, dict) else {} for entry in entries[:10]] if isinstance(entries, list) else []

    @cached_property
    def plugins(self) -> list[Plugins]:
        """What each model's plugin_params says."""
        return [read_plugins(model) for model in self.models]

    @cached_property
    def words(self) -> frozenset[str]:
        """All plugin words of all models."""
        return frozenset(word for plugins in self.plugins for word in plugins.words)

    @property
    def is_pool(self) -> bool:
        """Whether the host switches pooling on: both texts are set."""
        return bool(text(self.kv_pool, "backend") and text(self.kv_pool, "configPath"))

    @property
    def is_async(self) -> bool:
        """Whether the host's own asynchronous write is on; the kv_pool plugin takes its place."""
        return self.is_pool and self.kv_pool.get("asyncWrite") is True

    @property
    def is_host_async(self) -> bool:
        """Asynchronous write through the host's own pool client, with that client's restrictions."""
        return self.is_async and KV_POOL not in self.words

    @property
    def is_prefix(self) -> bool:
        """Whether prefix cache is on."""
        return "prefix_cache" in self.words

    @property
    def is_dmi(self) -> bool:
        """Whether prefill and decode run on separate nodes."""
        return self.server.get("inferMode") == "dmi"

    @property
    def is_multi_node(self) -> bool:
        """Whether one instance spans several nodes."""
        return self.backend.get("multiNodesInferEnabled") is True

    @property
    def has_lora(self) -> bool:
        """Whether any LoRA adapter is on."""
        return bool(self.deploy.get("LoraModules")) or (integer(self.deploy, "maxLoras") or 0) > 0

    @property
    def lora_path(self) -> tuple[str, ...]:
        """Where LoRA adapters are switched on."""
        return (B, D, "LoraModules" if self.deploy.get("LoraModules") else "maxLoras")

    def lora_file(self, index: int) -> Path | None:
        """The file beside a model's weights that names adapters and is read without ``LoraModules``; None without."""
        file = Path(text(self.models[index], "modelWeightPath") or "/nonexistent") / "lora_adapter.json"
        is_read = self.situation.follow and "LoraModules" not in self.deploy
        return file if is_read and self.followed.disk.facts(file).is_file else None

    def model_path(self, index: int, *parts: str | int) -> tuple[str | int, ...]:
        """Path of something in a ModelConfig entry."""
        return (B, D, M, index, *parts)

    def plugin_texts(self) -> Iterator[tuple[int, Plugins, tuple[str | int, ...]]]:
        """Index, content and path of every plugin_params there is."""
        for index, plugins in enumerate(self.plugins):
            if plugins.form != "absent":
                yield index, plugins, self.model_path(index, "plugin_params")

    def plugins_path(self) -> tuple[str | int, ...]:
        """Where plugins are switched on: the first model's plugin_params."""
        return self.model_path(0, "plugin_params")

    def option(self, index: int, *names: str) -> Any:
        """A leaf of ``models`` below any model name, such as ("kv_cache_options", "enable_nz")."""
        for options in section(self.models[index], "models").values():
            value: Any = options
            for name in names:
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                return value
        return None

    def is_option_on(self, index: int, *names: str) -> bool:
        """Whether such a leaf is true; the host also takes the text."""
        value = self.option(index, *names)
        return value is True or (isinstance(value, str) and value.lower() == "true")

    def at(self, path: str) -> Any:
        """The value at a JSON Pointer; None when there is none."""
        value = self.root
        for part in (p.replace("~1", "/").replace("~0", "~") for p in path.split("/")[1:]):
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                return None
        return value
