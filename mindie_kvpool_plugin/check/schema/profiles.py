"""The shipped JSON Schemas and the host versions they describe.

``schemas/`` is reached as package data: in a wheel it is a folder of the package, in a checkout
and an editable install a link to the folder at the top.  Keywords beginning with ``x-`` are ours:
severity and outcome of a violation, unit, and what the host does with a wrong value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

_FOLDER = Path(__file__).parents[2] / "schemas"

HOST_VERSIONS: dict[str, str] = {
    "3.0.0": "3.0.0",
    "3.0.0.beta.3": "3.0.0",
    "3.0.0.beta.2": "3.0.0.beta.2",
    "3.0.0.beta.1": "3.0.0.beta.1",
    "2.3.0": "2.x-docs",
    "2.x-docs": "2.x-docs",
    "2.2.RC1": "2.x-docs",
    "2.0.RC1": "2.x-docs",
    "1.0.0": "2.x-docs",
}
"""Every host version a user may name, the newest first, and the profile that describes it."""

DEFAULT_HOST_VERSION = next(iter(HOST_VERSIONS))
_ORDER = tuple(reversed(HOST_VERSIONS))


def is_before(version: str, other: str) -> bool:
    """Whether host ``version`` came out before ``other``."""
    return _ORDER.index(version) < _ORDER.index(other)


def names() -> list[str]:
    """Names of all shipped schemas, as ``mindie-kvpool schema`` lists them."""
    return sorted(path.name.removesuffix(".schema.json") for path in _FOLDER.glob("*.json"))


def text(name: str) -> str:
    """The text of a schema.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    return (_FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")


@lru_cache(maxsize=8)
def load(name: str) -> Schema:
    """A schema as an object; callers do not change it."""
    schema: Schema = json.loads(text(name))
    return schema


def config_schema(version: str) -> Schema:
    """The schema of config.json for a host version."""
    return load(f"config-{HOST_VERSIONS[version]}")


def resolve(schema: Any, root: Schema) -> Schema:
    """Follow ``$ref`` inside the same schema; keywords beside the reference stay."""
    for _ in range(4):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if reference is None:
            break
        target: Any = root
        for part in reference.split("/")[1:]:
            target = target[part]
        schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema if isinstance(schema, dict) else {}


def known_keys(root: Schema) -> dict[str, list[str]]:
    """Key -> the sections of config.json that know it, as dotted names; for "that belongs in ..."."""
    found: dict[str, list[str]] = {}
    for key, section in _keys(root, root, ""):
        found.setdefault(key, []).append(section)
    return found


def _keys(schema: Schema, root: Schema, section: str) -> Iterator[tuple[str, str]]:
    schema = resolve(schema, root)
    if schema.get("title") in {"Model options", "Options of one model"}:
        return  # free-form: the same words mean other things there
    for key, sub in schema.get("properties", {}).items():
        if not sub.get("deprecated"):
            yield key, section or "the top level"
        yield from _keys(sub, root, f"{section}.{key}" if section else key)
    if "items" in schema:
        yield from _keys(schema["items"], root, f"{section}[]")
