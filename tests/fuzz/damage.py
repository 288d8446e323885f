"""Damaged configurations, and what a repair of one must not do; ``python -m tests.fuzz.damage 200000`` tries so many.

What is valid is said here by other means than the check's own: a file that parses by its value, a damaged
one by the lines of it that are complete JSON.
"""

import json
import multiprocessing
import random
import re
import sys
import time
import traceback
from collections import Counter

import click

from mindie_kvpool_plugin.check import pipeline
from mindie_kvpool_plugin.check import repair as repairing
from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.check.situation import Situation
from tests.check_examples import MINIMAL, ROOT, all_cases, config_bytes

SITUATION = Situation(follow=False)
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
PAIR = re.compile(rf"[ \t]*({STRING})[ \t]*:[ \t]*({STRING}|{NUMBER}|true|false|null)[ \t]*,?[ \t]*\r?")
# a file of every section, short, so that a slip often meets something that matters
SMALL = {
    "ServerConfig": {"ipAddress": "127.0.0.1", "port": 1025, "httpsEnabled": False, "tlsCaFile": ["ca.pem"]},
    "BackendConfig": {
        "npuDeviceIds": [[0, 1, 2, 3]],
        "kvPoolConfig": {"backend": "mooncake", "configPath": "/etc/mindie/kv_pool.json", "asyncWrite": True},
        "ModelDeployConfig": {
            "maxSeqLen": 2560,
            "ModelConfig": [{"worldSize": 4, "plugin_params": '{"plugin_type":"prefix_cache,kv_pool"}'}],
        },
        "ScheduleConfig": {"cacheBlockSize": 128, "maxIterTimes": 512},
    },
}
TINY = {
    "ServerConfig": {"port": 1025, "httpsEnabled": False},
    "BackendConfig": {
        "npuDeviceIds": [[0, 1]],
        "kvPoolConfig": {"backend": "mooncake", "asyncWrite": True},
        "ScheduleConfig": {"maxIterTimes": 512},
    },
}
WHOLE = [
    *(json.dumps(TINY, indent=indent) for indent in (4, 4, 4, 2, 2, 2, 1, "\t", None)),
    json.dumps(SMALL, indent=4),
    json.dumps(SMALL, indent=2),
    json.dumps(SMALL),
    json.dumps(SMALL, indent=1).replace("\n", "\r\n"),
    json.dumps(MINIMAL, indent=2),
]
MAX_SHOWN = 50
PIECES = [data.decode("utf-8", "replace") for data in map(config_bytes, all_cases()) if len(data) < 4000]
PIECES += [path.read_text("utf-8") for path in sorted((ROOT / "conf_examples").rglob("config.json"))]
# slips of people: what is lost, doubled, moved, or typed by a Chinese input method
SLIPS = [
    ('"', ""), ("{", ""), ("}", ""), (",", ""), (":", ""), ("[", ""), ("]", ""), ('"', "“"), (":", "："), (",", "，"),
    (",", ",,"), ("}", "}}"), ('"', '""'), ("\n", ""), ("\n", "\n...\n"), ("\n", " // note\n"), ("\n", "\n• "),
    ("true", "True"), ("false", "False"), (" ", "\u00a0"), ("4", "４"), ("1", "01"), ('"', "'"), ("_", ""), ("e", "ee"),
    ("\n", "\n<<<<<<< HEAD\n"), ("\n", "\n=======\n"), ("\n", "\n>>>>>>> b\n"), ("\n", "\n```\n"), ("\\", ""),
    ("\\", "\\\\"), ("{", "{\0"), ("},", "}"), ('",', '"'), ("    ", ""), ("\n", "\n12 "), ("0", "0x0"), ("a", "\\d"),
]  # fmt: skip


def slipped(rng):
    """A configuration, or a piece of one, with one to four slips."""
    text = rng.choice(WHOLE)
    if rng.random() < 0.3:
        text = rng.choice(PIECES)
        start = rng.randrange(len(text) + 1)
        text = text[start : start + rng.randrange(400)]
    for _ in range(rng.randrange(1, 5)):
        old, new = rng.choice(SLIPS)
        places = [match.start() for match in re.finditer(re.escape(old), text)]
        if places:
            at = rng.choice(places)
            text = text[:at] + new + text[at + len(old) :]
    return text.encode()


def dead_keys(schema):
    if isinstance(schema, dict):
        yield from (key for key, sub in schema.get("properties", {}).items() if sub.get("deprecated"))
        for sub in schema.values():
            yield from dead_keys(sub)


DEAD = set(dead_keys(profiles.config_schema(SITUATION.host_version)))


def leaves(value):
    """Every scalar of a value by its path, without those under keys this version is known to ignore."""
    todo, found = [((), value)], []
    while todo:
        path, item = todo.pop()
        if isinstance(item, dict) and item:
            todo += [((*path, key), child) for key, child in item.items() if key not in DEAD]
        elif isinstance(item, list) and item:
            todo += [((*path, number), child) for number, child in enumerate(item)]
        else:
            found.append((path, item))
    return found


def plain(value):
    """A number without its point: 1025.0 may become 1025."""
    return int(value) if isinstance(value, float) and value == value // 1 else value


def values(value):
    """Every scalar and how often it is there."""
    return Counter(repr(plain(item)) for _, item in leaves(value))


def parsed(data):
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def pairs(text, *, whole_lines):
    """Members with a plain value, by key and value: on lines of their own, or wherever they stand."""
    found = map(PAIR.fullmatch, text.split("\n")) if whole_lines else PAIR.finditer(text)
    members = [(json.loads(match[1]), json.loads(match[2])) for match in found if match]
    return Counter((key, repr(plain(value))) for key, value in members if key not in DEAD)


def lost_pairs(before, after):
    """Values of complete lines that are nowhere afterwards, not under another name either."""
    outside = re.sub(r"/\*.*?\*/", "", before, flags=re.DOTALL)  # a comment is no member
    lost = pairs(outside, whole_lines=True) - pairs(after, whole_lines=False)
    gained = pairs(after, whole_lines=False) - pairs(before, whole_lines=False)
    return Counter(value for _, value in lost.elements()) - Counter(value for _, value in gained.elements())


def examine(data):
    before = pipeline.check_bytes(data, "config.json", SITUATION)
    done = repairing.repair(data, "config.json", SITUATION)
    again = repairing.repair(done.data, "config.json", SITUATION)
    assert again.data == done.data, "a second run changes something"
    if done.data == data:
        return
    after = pipeline.check_bytes(done.data, "config.json", SITUATION)
    assert after.counts <= before.counts, "errors were added"
    assert after.counts != before.counts or "FI-05" in done.codes, "changed, and no better"
    value = parsed(data.decode("utf-8-sig", "replace"))
    if isinstance(value, dict):
        assert values(value) == values(json.loads(done.after)), "a value of a valid file was lost"
    assert not lost_pairs(done.before, done.after), "a member of a damaged file was lost"


def tried(seed):
    """What is wrong with the repair of one damaged file; None if nothing is."""
    data = slipped(random.Random(seed))
    try:
        examine(data)
    except Exception as error:  # noqa: BLE001
        lines = traceback.format_exc().splitlines()
        return f"seed {seed}: {type(error).__name__}: {str(error)[:300]} {lines[-2].strip() if len(lines) > 1 else ''}"
    return None


def remember(module, name):
    """The same bytes are read again and again for one answer, and 200,000 files are many."""
    function, answers = getattr(module, name), {}

    def remembered(data, *args, **details):
        if data not in answers:
            if len(answers) > 30:
                answers.clear()
            answers[data] = function(data, *args, **details)
        return answers[data]

    setattr(module, name, remembered)


def prepare():
    """Once in every process."""
    remember(pipeline, "load_bytes")
    remember(pipeline, "check_bytes")
    repairing.load_bytes, repairing.check_bytes = pipeline.load_bytes, pipeline.check_bytes


def main(count, first=0):
    """Tries so many on all processors; exit status 1 when one repair went wrong."""
    begin, wrong = time.monotonic(), []
    with multiprocessing.Pool(initializer=prepare) as pool:
        for number, complaint in enumerate(pool.imap_unordered(tried, range(first, first + count), chunksize=200), 1):
            if complaint is not None:
                wrong.append(complaint)
            if complaint is not None and len(wrong) <= MAX_SHOWN:
                click.echo(complaint)
            if number % 10_000 == 0:
                click.echo(f"{number} files, {len(wrong)} wrong, {time.monotonic() - begin:.0f} s")
    click.echo(f"{count} damaged files: {len(wrong)} with a traceback, a value lost, an error added or a second change")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
