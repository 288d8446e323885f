"""Agreement with the real host: an error where it refuses or where its own bug hides a fault, none where it accepts.

``golden/host_verdicts.jsonl`` was written from the fact sheet: changes to a complete file, and what
the host does.  A larger set recorded from the host itself is used where it lies beside the checkout.
"""

import base64
import json
import os
from pathlib import Path

import pytest

from mindie_kvpool_plugin.check.pipeline import check_file
from mindie_kvpool_plugin.check.situation import Situation, find_home
from tests.check_examples import changed

ROOT = Path(__file__).parents[1]
GOLDEN = [json.loads(line) for line in (ROOT / "tests/golden/host_verdicts.jsonl").read_text("utf-8").splitlines()]
RECORDED = ROOT.parent / "shared" / "data" / "host_verdicts_sample.jsonl"


class Host:
    """The folders the recorded verdicts were taken in."""

    def __init__(self, folder, files):
        self.roots = {"@HOME@": folder / "home", "@WEIGHTS@": folder / "weights"}
        for token, root in self.roots.items():
            for name, file in files.get(token, {}).items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.filled(file["text"].encode()))
                path.chmod(int(file["mode"], 8))
        for place, _, _ in os.walk(folder):
            Path(place).chmod(0o750)
        self.config = self.roots["@HOME@"] / "conf" / "config.json"
        self.config.parent.mkdir(parents=True, exist_ok=True)

    def filled(self, data):
        for token, root in self.roots.items():
            data = data.replace(token.encode(), str(root).encode())
        return data

    def check(self, data):
        """Codes of the errors."""
        self.config.write_bytes(self.filled(data))
        self.config.chmod(0o640)
        situation = Situation(config_path=self.config, home=find_home(None, self.config))
        return [f"{f.code} {f.severity}" for f in check_file(self.config, situation).findings]


def is_agreed(wanted, found):
    severities = {each.split()[1] for each in found}
    if wanted == "error":
        return "error" in severities
    return bool(severities & {"error", "warning"}) if wanted == "warn" else "error" not in severities


@pytest.mark.parametrize("case", GOLDEN, ids=[case["id"] for case in GOLDEN])
def test_check_agrees_with_the_fact_sheet(case, tmp_path):
    """Refused or hidden: an error.  Accepted: none."""
    weights = {"config.json": {"mode": "0640", "text": '{"model_type": "qwen2"}'}}
    host = Host(tmp_path, {"@HOME@": {"__init__.py": {"mode": "0644", "text": ""}}, "@WEIGHTS@": weights})
    changes = {"M.modelWeightPath": "@WEIGHTS@"} | case["changes"]
    wanted = case.get("checker_should", "error" if case["verdict"] == "refuse" else "ok")
    assert is_agreed(wanted, found := host.check(json.dumps(changed(changes)).encode())), found


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded verdicts do not lie beside this checkout")
def test_check_agrees_with_the_recorded_host(tmp_path):
    """Every one of them; a disagreement is listed."""
    files = json.loads(RECORDED.with_name("host_verdicts_home.json").read_text("utf-8"))
    host = Host(tmp_path, files)
    rows = [json.loads(line) for line in RECORDED.read_text("utf-8").splitlines()]
    disagreements = []
    for row in rows:
        data = base64.b64decode(row["text_b64"]) if "text_b64" in row else row["text"].encode("utf-8", "surrogatepass")
        wanted = "error" if row["verdict"] != "accept" else row.get("checker_should", "ok")
        found = host.check(data)
        if not is_agreed(wanted, found):
            disagreements.append(f"{row['id']}: wanted {wanted}, found {sorted(set(found))[:5]}")
    assert disagreements == []
    assert len(rows) > 400
