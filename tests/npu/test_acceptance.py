"""What an acceptance does with devices, on an NPU or the emulator: copies in every layout, and troubles."""

import json
import os

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.acceptance import command
from mindie_kvpool_plugin.doctor.acceptance.device_child import main
from mindie_kvpool_plugin.doctor.child import run_child
from mindie_kvpool_plugin.host import device_trial
from mindie_kvpool_plugin.host.device_trial import BLOCKS, TrialCache, verify
from mindie_kvpool_plugin.kv_shape import KvShape
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests.standin_service import standing_in, write_config
from tests.unit.doctor.acceptance.conftest import write_pool
from tests.unit.doctor.conftest import SETTLED_FLAGS, state_of

pytestmark = pytest.mark.npu

CHILD = main.__module__
LATENT = KvShape(layers=3, kv_heads=1, key=512, value=64, is_latent=True, is_nz=True, dtype="bfloat16")
INT8 = KvShape(layers=2, kv_heads=4, key=64, value=64, element_bytes=2, key_bytes=1, is_nz=True, dtype="float16")
PLAIN = KvShape(layers=2, kv_heads=8, key=64, value=64)


def ask(device, shape=PLAIN, **env):
    fields = {name: getattr(shape, name) for name in KvShape.__dataclass_fields__}
    question = {"work": "copies", "device": device, "shape": fields, "block_size": 128, "tp": 2}
    return run_child(CHILD, question, 120, {**os.environ, **env})


@pytest.mark.parametrize("shape", [PLAIN, LATENT, INT8], ids=["plain", "nz-latent", "nz-int8"])
def test_every_layout_is_copied_right_on_a_device(torch, shape):
    """In a child, with the model's own layout among them."""
    told = ask(torch.npu.device_count() - 1, shape)
    layouts = [step for step in told.steps if step["step"] == "layout"]
    assert (told.ending, [each["wrong"] for each in layouts]) == ("", [[]] * 6), told
    assert [each["name"] for each in layouts] == ["model", "nd", "nz", "mla", "int8", "odd"]
    assert all(value > 0 for name, value in told.step("speeds").items() if name != "step")
    assert told.step("device")["free"] > 0


def test_a_device_that_is_not_there_is_refused_by_its_number(torch):
    """In one line."""
    told = ask(torch.npu.device_count())
    assert f"NPU {torch.npu.device_count()} cannot be used" in told.step("refused")["error"]
    assert told.ending == ""


def test_a_shell_without_cann_is_told_by_the_library_that_is_missing(torch, emulator):
    """Before anything of a device is looked at."""
    if emulator is None:
        pytest.skip("an NPU's libraries may be found without the environment")
    told = ask(0, LD_LIBRARY_PATH="")
    assert ".so" in told.step("unloaded")["error"]
    assert told.ending == ""


def test_a_full_device_is_refused_with_the_reason(torch, emulator):
    """The service has taken all of it: the trial runs before the service."""
    if emulator is None:
        pytest.skip("only the emulator's memory can be made small")
    told = ask(0, FAKECANN_MEMORY=str(4 << 20))
    assert "no cache for a trial could be made on npu:0" in told.step("refused")["error"]


def test_a_copy_that_goes_wrong_is_seen(torch, device):
    """Control: a byte that somebody else changes, and a write that is lost."""
    cache = TrialCache(device_trial.of_model(PLAIN, 128, 2, device), device.index)
    assert verify(cache) == []
    cache = TrialCache(device_trial.of_model(PLAIN, 128, 2, device), device.index)
    cache.layout.segments[1][7].fill_(1)
    torch.npu.synchronize()
    assert verify(cache) == [7]
    cache = TrialCache(device_trial.of_model(PLAIN, 128, 2, device), device.index)
    cache.fill([BLOCKS - 1], 5)
    assert verify(cache) == [BLOCKS - 1]


def test_a_machine_with_devices_is_accepted_beside_a_service(torch, tmp_path, monkeypatch):
    """The whole command: each device's blocks through a real pool, and two prompts."""
    pytest.importorskip("mooncake.store", reason="needs Mooncake's wheel for this interpreter")
    monkeypatch.setenv("MINDIE_KVPOOL_RUN_DIR", str(tmp_path / "run"))
    devices = list(range(min(2, torch.npu.device_count())))
    with MooncakeMaster(*SETTLED_FLAGS) as running, standing_in(write_pool(tmp_path, running), tp=2) as service:
        before = state_of(running)
        config = write_config(tmp_path, tmp_path / "kv_pool.json", service.port, devices)
        options = ["--format", "json", "--metrics-port", str(running.metrics_port)]
        result = CliRunner().invoke(command, [str(config), *options])
        lines = json.loads(result.output)["lines"]
        assert [line["text"] for line in lines if line["result"] == "failed"] == []
        verified = [line["values"]["device"] for line in lines if line["id"] in ("copies.verified", "ranks.verified")]
        assert sorted(verified) == sorted([*devices, *devices])
        assert len([line for line in lines if line["id"] == "prompts.hit"]) == 2
        assert result.exit_code == 0
        assert state_of(running) == before
