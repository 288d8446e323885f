"""Writes the whole schemas for editors from one source per fact: ``make schemas``.

``source/config.json`` describes config.json of one host version; ``source/versions.json`` says which, and what was
different, version by version, in those ``before`` it and ``after`` it (merge patches, RFC 7396);
``source/memcache_local.json`` has MemCache's own keys.
Everything of this package's own comes from its records (``options/records.py``).  Titles are made from names.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.schema.profiles import DEFAULT_HOST_VERSION
from mindie_kvpool_plugin.check.schema.records import object_schema
from mindie_kvpool_plugin.options.pool_file import RECORDS
from mindie_kvpool_plugin.options.records import KvPoolOptions, LocalDramOptions, MemcacheOptions, MooncakeOptions

FOLDER = Path(__file__).parent
ADDRESS = "https://mindie-kvpool-plugin.invalid/schemas"
# keywords in the order a reader wants them; what is not listed follows
ORDER = ("$schema", "$id", "title", "type", "description")
EDITOR = {"type": "string", "description": "For editors; ignored."}
TITLE = "kv_pool plugin"
SECTION = "Options of the kv_pool plugin. The section's presence, even as {}, lets the scheduler ask this package."


def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by name, whole."""
    made = {f"config-{name}": schema for name, schema in config_schemas().items()}
    newest = made[f"config-{DEFAULT_HOST_VERSION}"]["properties"]["BackendConfig"]["properties"]["kvPoolConfig"]
    made["kvpool"] = newest
    made["mooncake"] = mooncake_schema()
    made["memcache"] = with_section(
        object_schema(MemcacheOptions)
        | {
            "title": "MemCache pool file",
            "description": "The file kvPoolConfig.configPath names when backend is memcache: where MemCache's own "
            "configuration is, and one section for the kv_pool plugin. UTF-8 without BOM.",
        }
    )
    made["memcache_local"] = source("memcache_local")
    made["local_dram"] = with_section(
        object_schema(LocalDramOptions)
        | {
            "title": "Embedded pool file",
            "description": "Pool file of the embedded pool of one process: tests, simulator and demo. "
            "The service accepts it nowhere.",
        }
    )
    for name, record in RECORDS.items():
        made.setdefault(name, with_section(plain_schema(name, record)))
    return {name: whole(name, schema) for name, schema in made.items()}


def plain_schema(name: str, record: type) -> dict[str, Any]:
    """A backend's pool file of which nothing more is to be said than its record does."""
    summary = inspect.getdoc(record) or ""
    return object_schema(record) | {"title": f"{title(name)} pool file", "description": summary.partition("\n")[0]}


def config_schemas() -> dict[str, dict[str, Any]]:
    """config.json for each version, going back from the one that is described whole, and going on from it."""
    versions = source("versions")
    made = {versions["base"]: source("config")}
    for patches in (versions["before"], versions["after"]):
        schema = made[versions["base"]]
        for version, patch in patches.items():
            schema = made[version] = merged(schema, patch)
    return {version: {**each, "title": f"{each['title']}, {version}"} for version, each in made.items()}


def mooncake_schema() -> dict[str, Any]:
    """Mooncake's pool file; the host's own client, in charge without the section, demands one key more."""
    schema, key = object_schema(MooncakeOptions), "metadata_server"
    schema |= {
        "title": "Mooncake pool file",
        "description": "The file kvPoolConfig.configPath names when backend is mooncake: Mooncake's own keys, and one "
        "section for the kv_pool plugin. UTF-8 without BOM.",
        "if": {"properties": {"kv_pool": {"title": TITLE, "description": SECTION, "not": {}}}},
        "then": {"properties": {key: described(schema, key)}, "required": [key]},
    }
    return with_section(schema)


def described(schema: dict[str, Any], key: str) -> dict[str, Any]:
    """A property by its description alone: strict readers want one beside every ``required``."""
    return {"description": schema["properties"][key]["description"]}


def with_section(schema: dict[str, Any]) -> dict[str, Any]:
    """A pool file's schema with the plugin's section."""
    section = object_schema(KvPoolOptions) | {
        "title": TITLE,
        "description": SECTION,
        "additionalProperties": False,
        "x-outcome": "late",
        # notes of people; JSON has no comments
        "patternProperties": {"^(?:_|#|//|\\$|comment)": {"description": "A note; ignored."}},
    }
    section["properties"] = {"$schema": EDITOR, **section["properties"]}
    return schema | {"properties": {"$schema": EDITOR, **schema["properties"], "kv_pool": section}}


def whole(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with its address, titles everywhere, and keywords in one order."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{ADDRESS}/{name}.schema.json"}
    result: dict[str, Any] = titled({**head, **schema})
    return result


def titled(schema: Any) -> Any:
    """``schema`` with a title for every described property that has none."""
    if isinstance(schema, list):
        return [titled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: titled(value) for key, value in schema.items()}
    for name, each in result.get("properties", {}).items():
        if "description" in each and "title" not in each:
            each["title"] = title(name)
        if each.get("deprecated"):  # VS Code's word for it: says so, and does not offer the key
            each["deprecationMessage"] = each["description"]
        result["properties"][name] = ordered(each)
    return ordered(result)


def title(name: str) -> str:
    """maxJsonDepth: Max Json Depth; top_k: Top k."""
    if "_" in name or "." in name:
        return name.replace("_", " ").capitalize()
    return " ".join(word[:1].upper() + word[1:] for word in re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).split())


def ordered(schema: dict[str, Any]) -> dict[str, Any]:
    """The keywords a reader wants first, first."""
    return {key: schema[key] for key in ORDER if key in schema} | schema


def merged(value: Any, patch: Any) -> Any:
    """``value`` with a merge patch applied."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), change)
    return result


def source(name: str) -> dict[str, Any]:
    """A hand-kept source."""
    found: dict[str, Any] = json.loads((FOLDER / "source" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def files() -> dict[Path, str]:
    """Every generated file and its text."""
    return {
        FOLDER / f"{name}.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in schemas().items()
    }


def main() -> None:
    """Write all, and remove what is generated no more."""
    made = files()
    for path in FOLDER.glob("*.schema.json"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(made)} schemas in {FOLDER.name}/\n")


if __name__ == "__main__":
    main()
