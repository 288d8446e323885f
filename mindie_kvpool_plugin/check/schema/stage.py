"""The schema stage: types, ranges and names, told with field, value, expectation and fix.

The validator is jsonschema.  Before it runs, the value is walked together with the schema for
what JSON Schema cannot see: integers written with a point or an exponent, unknown keys, and
numbers the host cuts to integers.  That walk also bounds the work, whatever the file contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import THE_FILE, Code, Finding, Outcome, Severity, pointer
from mindie_kvpool_plugin.check.meaning import INSTEAD
from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.check.schema.names import dead_key, unknown_key
from mindie_kvpool_plugin.check.schema.profiles import Schema
from mindie_kvpool_plugin.options import typos

# no service has more devices, adapters or certificates; a longer list is cut and reported
MAX_ITEMS = 1024
# of all lists together: the validator takes some ten microseconds for each
MAX_ALL_ITEMS = 16 * MAX_ITEMS
# nesting of the deepest known key is 9
MAX_DEPTH = 40
# objects with more keys than this are not looked through for typing mistakes one by one
MAX_KEYS = 100
# a file with more is reported by its first ones
MAX_FINDINGS = 200

# a number, or one of JSON's words
_PLAIN = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?|true|false|null")

_KINDS = {
    "type": codes.WRONG_TYPE,
    "minimum": codes.OUT_OF_RANGE,
    "maximum": codes.OUT_OF_RANGE,
    "exclusiveMinimum": codes.OUT_OF_RANGE,
    "enum": codes.NO_CHOICE,
    "const": codes.NO_CHOICE,
    "not": codes.NO_CHOICE,
    "pattern": codes.WRONG_FORM,
    "minLength": codes.WRONG_FORM,
    "maxLength": codes.WRONG_FORM,
    "minItems": codes.WRONG_FORM,
    "maxItems": codes.WRONG_FORM,
    "maxProperties": codes.WRONG_FORM,
}


@dataclass(slots=True)
class _Walk:
    """One walk over value and schema.

    Attributes:
        root: the schema.
        owners: key -> sections that know it.
        items_left: list items that are still looked at.
        findings: what was found.
    """

    root: Schema
    owners: dict[str, list[str]] = field(default_factory=dict)
    items_left: int = MAX_ALL_ITEMS
    findings: list[Finding] = field(default_factory=list)


@lru_cache(maxsize=8)
def _compiled(name: str) -> tuple[Any, dict[str, list[str]]]:
    """A schema's validator, and which section knows which key."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415  # costs 50 ms; a file that does not parse needs none

    schema = profiles.load(name)
    return Draft202012Validator(schema), profiles.known_keys(schema)


def check_schema(value: Any, root: Schema, *, outcome: Outcome = "boot") -> list[Finding]:
    """Everything ``root`` says about ``value``; paths are relative to ``value``."""
    validator, owners = _compiled(root["$id"].rpartition("/")[2].removesuffix(".schema.json"))
    walk = _Walk(root, owners=owners)
    copy = _prepared(value, root, (), walk, 0)
    errors = validator.iter_errors(copy)
    for count, error in enumerate(errors):
        if count >= MAX_FINDINGS:
            break
        finding = _violation(error, value, outcome)
        if finding is not None:
            walk.findings.append(finding)
    return walk.findings


def _prepared(value: Any, schema: Schema, path: tuple[str | int, ...], walk: _Walk, depth: int) -> Any:
    """A copy of ``value`` fit for the validator."""
    schema = profiles.resolve(schema, walk.root)
    if isinstance(value, dict):
        return _prepared_object(value, schema, path, walk, depth)
    if isinstance(value, list):
        return _prepared_list(value, schema, path, walk, depth)
    if isinstance(value, float) or (isinstance(value, bool) and schema.get("x-coerced")):
        return _prepared_float(float(value), schema, path, walk)
    return value


def _prepared_list(value: list[Any], schema: Schema, path: tuple[str | int, ...], walk: _Walk, depth: int) -> list[Any]:
    items = schema.get("items")
    limit = MAX_ITEMS if items is None or walk.items_left > MAX_ITEMS else max(walk.items_left, 1)
    if len(value) > limit:
        params = {"count": len(value), "limit": MAX_ITEMS if len(value) > MAX_ITEMS else MAX_ALL_ITEMS}
        severity: Severity = "warning" if items is None else "error"
        walk.findings.append(codes.WRONG_FORM.found(pointer(*path), severity=severity, params=params, variant="length"))
    if items is None or depth > MAX_DEPTH:
        return []
    walk.items_left -= min(len(value), limit)
    return [_prepared(item, items, (*path, i), walk, depth + 1) for i, item in enumerate(value[:limit])]


def _prepared_object(
    value: dict[str, Any], schema: Schema, path: tuple[str | int, ...], walk: _Walk, depth: int
) -> dict[str, Any]:
    known: dict[str, Schema] = schema.get("properties", {})
    if "maxProperties" in schema:
        return dict.fromkeys(list(value)[:MAX_KEYS])
    copy = {}
    for number, (key, item) in enumerate(value.items()):
        if key in known:
            if profiles.resolve(known[key], walk.root).get("deprecated"):
                walk.findings.append(dead_key(key, known, pointer(*path), value))
            copy[key] = _prepared(item, known[key], (*path, key), walk, depth + 1)
        elif known and number < MAX_KEYS:
            is_forbidden = schema.get("additionalProperties") is False
            walk.findings.append(
                unknown_key(key, known, pointer(*path), value, owners=walk.owners, is_forbidden=is_forbidden)
            )
    return copy


def _prepared_float(value: float, schema: Schema, path: tuple[str | int, ...], walk: _Walk) -> Any:
    kinds = schema.get("type", [])
    wants_integer = "integer" in ([kinds] if isinstance(kinds, str) else kinds) and "number" not in kinds
    if not wants_integer or value != value or abs(value) > 1e300:  # noqa: PLR0124
        return value if abs(value) < 1e300 else 1e300
    if schema.get("x-coerced"):
        params = {"cut": int(value)}
        walk.findings.append(
            codes.NOT_AN_INTEGER.found(
                pointer(*path), severity="warning", outcome="silent", value=value, params=params, variant="cut"
            )
        )
        return int(value)
    if value.is_integer():
        severity: Severity = "warning" if schema.get("x-severity") == "warning" else "error"
        params = {"meant": int(value)}
        walk.findings.append(codes.NOT_AN_INTEGER.found(pointer(*path), severity=severity, value=value, params=params))
        return int(value) if abs(value) < 2**62 else 2**62
    return value


def _violation(error: Any, value: Any, outcome: Outcome) -> Finding | None:
    """A finding from one error of the validator."""
    keyword, owner, path = error.validator, error.schema, list(error.absolute_path)
    if keyword == "additionalProperties":
        return None  # told by the walk, with the likely spelling
    severity: Severity = owner.get("x-severity", "error")
    outcome = owner.get("x-outcome", "silent" if severity == "warning" else outcome)
    switch = owner.get("x-only-if")
    if switch is not None and not _is_on(switch, path, value):
        severity, outcome = "warning", "silent"
    if keyword == "required":
        return _missing(error, path, severity, outcome)
    found = _at(value, path)
    params = {"expected": expectation(owner), "key": str(path[-1]) if path else THE_FILE}
    kind = _KINDS.get(keyword, codes.WRONG_FORM)
    variant, more = _guess(kind, found, owner)
    return kind.found(
        pointer(*path), severity=severity, outcome=outcome, value=found, params=params | more, variant=variant
    )


def _guess(kind: Code, found: Any, owner: Schema) -> tuple[str, dict[str, Any]]:
    """What was probably meant by a value: the variant of the message, and what it needs."""
    if kind is codes.NO_CHOICE:
        return closest_choice(found, owner.get("enum", ()))
    if kind is codes.WRONG_TYPE and is_quoted(found, owner):
        try:
            return "quoted", {INSTEAD: json.loads(found)}
        except (ValueError, RecursionError):
            return "quoted", {}
    return "", {}


def closest_choice(found: Any, choices: Iterable[Any]) -> tuple[str, dict[str, Any]]:
    """The choice that a text was probably meant to be, as variant and parameter of ``NO_CHOICE``."""
    words = [choice for choice in choices if isinstance(choice, str) and choice]
    close = typos.closest(found.strip(), words) if isinstance(found, str) else None
    return ("close", {"close": close, INSTEAD: close}) if close is not None else ("", {})


def is_quoted(found: Any, owner: Schema) -> bool:
    """Whether a text holds what should stand there itself: an object, a list, a number, true or false."""
    kind = str(owner.get("type"))
    if not isinstance(found, str) or "string" in kind:
        return False
    start = {"object": "{", "array": "["}.get(kind)
    return found.lstrip().startswith(start) if start is not None else _PLAIN.fullmatch(found.strip()) is not None


def _missing(error: Any, path: list[str | int], severity: Severity, outcome: Outcome) -> Finding:
    key = error.message.split("'")[1]  # the only place that says which of them
    default = error.schema.get("properties", {}).get(key, {}).get("default")
    params = {"key": key, "expected": expectation(error.schema), "default": json.dumps(default)}
    variant = "" if default is None else "default"
    return codes.MISSING_KEY.found(
        pointer(*path, key), severity=severity, outcome=outcome, params=params, variant=variant
    )


def _is_on(switch: str, path: list[str | int], value: Any) -> bool:
    """Whether the nearest ``switch`` above the value is on; absent counts as on."""
    nearest: Any = True
    here = value
    for part in path:
        if isinstance(here, dict) and switch in here:
            nearest = here[switch]
        here = _at(here, [part])
    return nearest is not False


def _at(value: Any, path: list[str | int]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def expectation(schema: Schema) -> str:
    """What a value may be, in the words both languages share: types, ranges, choices."""
    return "; ".join(_expected(schema)) or "-"


def _expected(schema: Schema) -> Iterator[str]:
    if "const" in schema:
        yield json.dumps(schema["const"])
        return
    if "enum" in schema:
        yield ", ".join(
            choice if isinstance(choice, str) and choice else json.dumps(choice) for choice in schema["enum"]
        )
        return
    kinds = schema.get("type", [])
    yield from ([kinds] if isinstance(kinds, str) else ["/".join(kinds)] if kinds else [])
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        yield f"{'' if low is None else low}..{'' if high is None else high}"
    if "exclusiveMinimum" in schema:
        yield f"> {schema['exclusiveMinimum']}"
    if "not" in schema:
        yield f"!= {json.dumps(schema['not'].get('const'))}"
    if "pattern" in schema:
        yield schema["pattern"]
    if "maxLength" in schema:
        yield f"<= {schema['maxLength']} chars"
    if "minItems" in schema:
        yield f">= {schema['minItems']} items"
    if "x-unit" in schema:
        yield f"[{schema['x-unit']}]"
