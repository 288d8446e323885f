"""The records of a pool file as JSON Schema: for editors, and for what a finding says was expected."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any, get_args

from mindie_kvpool_plugin.check.schema.profiles import Schema
from mindie_kvpool_plugin.options.records import all_options
from mindie_kvpool_plugin.options.sizes import PATTERN as SIZE_PATTERN

_UNITS = {"s": "s", "blocks": "blocks"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def object_schema(record: type[Any]) -> Schema:
    """Properties and required keys of a record, with the descriptions of its docstring."""
    texts = _descriptions(record)
    properties, required = {}, []
    for name, hint, field in all_options(record):
        properties[name] = {"description": texts.get(name, ""), **property_schema(name, hint, field)}
        if field.default is dataclasses.MISSING:
            required.append(name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def property_schema(name: str, hint: Any, field: dataclasses.Field[Any]) -> Schema:
    """What the type, the metadata and the default of an option say, without its description."""
    schema: Schema = _value_schema(hint, field.metadata)
    if field.default is not dataclasses.MISSING:
        schema["default"] = field.default
    if "examples" in field.metadata:
        schema["examples"] = list(field.metadata["examples"])
    unit = field.metadata.get("unit") or _UNITS.get(name.rpartition("_")[2])
    if unit is not None:
        schema["x-unit"] = unit
    return schema | {"x-outcome": "late"}


def _value_schema(hint: Any, about: Mapping[str, Any]) -> Schema:
    if about.get("size"):
        return {"type": ["integer", "string"], "minimum": 0, "pattern": SIZE_PATTERN}
    if get_args(hint):
        return {"type": "string", "enum": list(get_args(hint))}
    schema: Schema = {"type": _TYPES[hint]}
    if hint is str and "pattern" in about:
        schema["pattern"] = rf"^\s*(?:{about['pattern']})\s*$"
    elif hint is str and not about.get("may_be_empty"):
        schema["pattern"] = r"\S"
    elif hint is int or about.get("may_be_zero"):
        schema["minimum"] = 0 if about.get("may_be_zero") else 1
    elif hint is float:
        schema["exclusiveMinimum"] = 0
    if "at_most" in about:
        schema["maximum"] = about["at_most"]
    if "advised" in about:
        schema |= {"maximum": about["advised"], "x-severity": "warning"}
    return schema


def _descriptions(record: type[Any]) -> dict[str, str]:
    """The sentences of the docstring's ``Attributes``; empty under ``python -OO``."""
    # Python 3.13 takes the indentation off by itself
    _, _, attributes = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", attributes, re.MULTILINE | re.DOTALL)
    return {name: _sentence(" ".join(text.split())) for name, text in entries}


def _sentence(text: str) -> str:
    first = text if ":" in text.split(" ", maxsplit=1)[0] else text[:1].upper() + text[1:]
    return first if first.endswith(".") else first + "."
