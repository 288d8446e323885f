"""Meeting place, NPU surroundings, environment, MemCache's services, the lease: what is around the pool."""

import http.server
import importlib.util
import json
import os
import socket
import threading

import pytest

from mindie_kvpool_plugin.doctor import memcache as memcache_probes
from mindie_kvpool_plugin.doctor.child import Told
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests import memcache_wheel
from tests.conftest import HOST, free_port, mooncake_keys
from tests.unit.doctor.conftest import LIVE, case_of, is_answered, told, troubles

LOOPBACK_KEYS = {"local_hostname": HOST, "master_server_address": f"{HOST}:1"}
ELSEWHERE = "192.0.2.1"  # RFC 5737: nobody's


@pytest.fixture
def meeting(pool_path):
    """What is said of a meeting place."""

    def ask(place):
        return told(case_of(pool_path({**LOOPBACK_KEYS, "kv_pool": {"agreement": place}})), "pool_file", "meeting")

    return ask


def test_ranks_of_one_machine_need_no_place(meeting):
    """Not here, not failed."""
    assert meeting("auto")["meeting.file"].verdict == "absent"


def test_a_free_port_of_this_machine_is_good(meeting):
    """For rank 0, which will take it; it is free afterwards."""
    place = f"tcp://{HOST}:{free_port()}"
    assert "meeting.free" in meeting(place)
    assert "meeting.free" in meeting(place)


def test_a_port_that_a_python_process_holds_may_be_rank_0(meeting):
    """Its process is named."""
    with socket.create_server((HOST, 0)) as holder:
        lines = meeting(f"tcp://{HOST}:{holder.getsockname()[1]}")
    assert lines["meeting.in_use"].params["pid"] == os.getpid()


def test_a_port_that_something_else_holds_is_trouble(meeting, master):
    """A master is no rank."""
    assert troubles(meeting(f"tcp://{HOST}:{master.port}")) == ["meeting.taken"]


def test_a_place_with_a_name_nobody_knows_is_trouble(meeting):
    """The reserved domain never resolves."""
    assert troubles(meeting("tcp://rank0.invalid:18888")) == ["meeting.unresolved"]


def test_a_place_with_an_impossible_port_is_trouble(meeting):
    """Five digits are not always a port."""
    assert troubles(meeting(f"tcp://{HOST}:70000")) == ["meeting.port"]


@pytest.mark.parametrize("is_listening", [True, False])
def test_another_machines_port_is_connected_to(meeting, monkeypatch, is_listening):
    """Loopback plays the other machine; before rank 0 starts nobody listens, and that is right."""
    from mindie_kvpool_plugin.doctor import meeting as probes

    monkeypatch.setattr(probes, "is_here", lambda host: False)
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1] if is_listening else free_port()
        lines = meeting(f"tcp://{HOST}:{port}")
    assert ("meeting.reached" if is_listening else "meeting.nobody_yet") in lines


@pytest.fixture
def npu_case(pool_path, tmp_path):
    """A pool file with a protocol, and the files of a machine."""

    def build(protocol, *files, **env):
        root = tmp_path / "root"
        for name in ("dev", *files):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch() if "/" in name else path.mkdir(exist_ok=True)
        gone = dict.fromkeys(("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_BUFFER_POOL"), "")
        case = case_of(pool_path({**LOOPBACK_KEYS, "protocol": protocol}), {**gone, **env}, root=root)
        return told(case, "pool_file", "npu", "environment")

    return build


NPU_FILES = ("dev/davinci0", "dev/davinci1", "usr/local/Ascend/driver/version.info", "etc/hccn.conf")


def test_no_npu_is_not_here_where_none_is_needed(npu_case):
    """Nor does anybody ask for its environment."""
    lines = npu_case("tcp")
    assert lines["npu.without_devices"].verdict == "absent"
    assert troubles(lines) == []
    assert not any(name.endswith("_buffers") for name in lines)


def test_no_npu_is_trouble_with_ascend(npu_case):
    """Told with what a container needs."""
    lines = npu_case("ascend")
    assert troubles(lines) == ["npu.no_devices"]
    assert "/dev/davinci0" in lines["npu.no_devices"].fix("en")
    assert lines["environment.no_buffers"].verdict == "warning"


def test_what_an_npu_needs_beside_it_is_missed_with_ascend(npu_case):
    """Stand-ins for devices alone: driver, network file and CANN are each named."""
    assert troubles(npu_case("ascend", "dev/davinci0")) == ["npu.no_cann", "npu.no_driver", "npu.no_hccn"]
    lines = npu_case("tcp", "dev/davinci0")
    assert troubles(lines) == []
    assert {"npu.without_cann", "npu.without_driver", "npu.without_hccn"} <= lines.keys()


def test_a_complete_npu_is_good(npu_case, tmp_path):
    """Stand-ins for all of it."""
    (tmp_path / "mooncake").mkdir()
    smi = tmp_path / "npu-smi"
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    env = {
        "ASCEND_HOME_PATH": str(tmp_path),
        "ASCEND_BUFFER_POOL": "4:8",
        "LD_LIBRARY_PATH": str(tmp_path / "mooncake"),
        "PATH": str(tmp_path),
    }
    lines = npu_case("ascend", *NPU_FILES, **env)
    assert {line.verdict for line in lines.values()} <= {"good", "note"}
    assert lines["npu.devices"].params["count"] == 2


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, "environment.jemalloc"),
        ({"LD_PRELOAD": ""}, "environment.no_jemalloc"),
        ({"TASK_QUEUE_ENABLE": "0"}, "environment.task_queue"),
        ({"TASK_QUEUE_ENABLE": "1"}, "environment.queue"),
    ],
)
def test_the_environment_the_documents_ask_for(pool_path, env, expected):
    """Notes, and one warning."""
    assert expected in told(case_of(pool_path(LOOPBACK_KEYS), env), "environment")


def test_over_ascend_nothing_is_tried_without_a_free_npu(settled_master, pool_path):
    """An NPU that a service uses is not touched unasked."""
    keys = mooncake_keys(settled_master, 32 << 20, protocol="ascend")
    lines = told(case_of(pool_path(keys)), *LIVE)
    assert is_answered(lines)
    assert lines["transfer.not_tried"].fix("en") == "name a free one: --device N"
    assert troubles(lines) == []


def test_over_ascend_a_trial_without_cann_says_what_is_missing(settled_master, pool_path):
    """An NPU was named, and this machine has none."""
    keys = mooncake_keys(settled_master, 32 << 20, protocol="ascend")
    lines = told(case_of(pool_path(keys), device=0), *LIVE)
    assert troubles(lines) == ["transfer.refused"]
    assert "set_env.sh" in lines["transfer.refused"].text("en")


@pytest.fixture(scope="module")
def settled_master():
    """One with a lease shorter than a long prompt takes to load here."""
    with MooncakeMaster("--default_kv_lease_ttl=5s") as running:
        yield running


@pytest.fixture
def configuration(tmp_path, pool_path):
    """A config.json with weights beside a pool file."""

    def write(master, longest_tokens):
        pool = pool_path(mooncake_keys(master, 32 << 20))
        shape = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 1024}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "torch_dtype": "bfloat16", **shape}))
        model = {"modelName": "small", "modelWeightPath": str(tmp_path), "worldSize": 2}
        deploy = {"maxInputTokenLen": longest_tokens, "maxSeqLen": longest_tokens + 1, "ModelConfig": [model]}
        backend = {"kvPoolConfig": {"backend": "mooncake", "configPath": str(pool)}, "ModelDeployConfig": deploy}
        path = tmp_path / "service.json"
        path.write_text(json.dumps({"BackendConfig": {**backend, "ScheduleConfig": {"cacheBlockSize": 128}}}))
        return path

    return write


@pytest.mark.parametrize(("tokens", "expected"), [(2048, "lease.long_enough"), (2_000_000_000, "lease.short")])
def test_the_lease_is_held_against_the_longest_prompt(settled_master, configuration, tokens, expected):
    """With the figures: a block of one of two ranks has 4 layers x 128 tokens x 2 x 128 values x 2 bytes."""
    lines = told(case_of(configuration(settled_master, tokens)), *LIVE)
    assert lines["transfer.size"].params["bytes"] == 4 * 128 * 2 * 128 * 2
    assert lines[expected].params["lease"] == "5"
    assert float(lines[expected].params["seconds"]) >= 0
    assert lines[expected].params["tokens"] == tokens


class Health(http.server.BaseHTTPRequestHandler):
    """The meta service's page."""

    status = 200

    def do_GET(self):
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def memcache_case(pool_path, tmp_path, monkeypatch):
    """A pool file for MemCache, with the ports of its two services."""
    monkeypatch.delenv("MMC_LOCAL_CONFIG_PATH", raising=False)

    def build(meta, store, text="ock.mmc.meta_service_url = tcp://{host}:{meta}\n"):
        local = tmp_path / "mmc-local.conf"
        told_text = text + "ock.mmc.local_service.config_store_url = tcp://{host}:{store}\n"
        local.write_text(told_text.format(host=HOST, meta=meta, store=store))
        return told(case_of(pool_path({"config_path": str(local)})), "pool_file", "memcache")

    return build


@pytest.fixture
def meta_service(monkeypatch):
    """Sockets at its addresses, a health page, and a client that is answered."""
    with socket.create_server((HOST, 0)) as store, http.server.HTTPServer((HOST, 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(memcache_probes, "METRICS_PORT", server.server_port)
        monkeypatch.setattr(memcache_probes, "run_child", child_says({"step": "pinged", "seconds": 0.001, "code": 0}))
        yield server.server_port, store.getsockname()[1]
        server.shutdown()


def child_says(*steps, ending=""):
    return lambda *_: Told(list(steps), ending)


def test_memcache_services_that_answer(memcache_case, meta_service):
    """Their ports, the health page, and a lookup."""
    lines = memcache_case(*meta_service)
    assert {"memcache.reached", "memcache.healthy", "memcache.answers", "memcache.no_transfer"} <= lines.keys()
    assert troubles(lines) == []


def test_a_meta_service_that_is_not_well(memcache_case, meta_service, monkeypatch):
    """Its page says so; where there is no page, nothing is said against it."""
    monkeypatch.setattr(Health, "status", 503)
    assert troubles(memcache_case(*meta_service)) == ["memcache.unhealthy"]
    monkeypatch.setattr(memcache_probes, "METRICS_PORT", free_port())
    assert memcache_case(*meta_service)["memcache.no_http"].verdict == "absent"


@pytest.mark.parametrize(
    ("child", "expected"),
    [
        (child_says({"step": "refused", "error": "no"}), "memcache.refused"),
        (child_says(ending="SIGSEGV"), "memcache.died"),
        (child_says({"step": "pinged", "seconds": 0.1, "code": -3014}), "memcache.died"),
    ],
)
def test_memcache_clients_that_get_no_answer(memcache_case, meta_service, monkeypatch, child, expected):
    """Told, whatever became of them."""
    monkeypatch.setattr(memcache_probes, "run_child", child)
    assert troubles(memcache_case(*meta_service)) == [expected]


@pytest.mark.memcache
@pytest.mark.skipif(importlib.util.find_spec("memcache_hybrid") is None, reason="memcache_hybrid is not installed")
def test_a_real_meta_service_is_asked(pool_path, tmp_path, monkeypatch):
    """By the wheel's own client, which needs no NPU for that."""
    local = tmp_path / "mmc-local.conf"
    monkeypatch.setenv(memcache_wheel.VARIABLE, str(local))
    monkeypatch.setenv(memcache_wheel.PREPARED, str(tmp_path))
    with memcache_wheel.meta_service(64 << 20):
        lines = told(case_of(pool_path({"config_path": str(local)})), "pool_file", "memcache")
    assert troubles(lines) == []
    assert float(lines["memcache.answers"].params["milliseconds"]) > 0


def test_memcache_services_that_do_not_answer(memcache_case):
    """Named by the key that leads there."""
    lines = memcache_case(free_port(), free_port())
    assert troubles(lines) == ["memcache.unreachable"]
    assert "ock.mmc.meta_service_url" in lines["memcache.unreachable"].text("en")


def test_memcache_configuration_that_cannot_be_read(memcache_case):
    """In the words of start-up."""
    assert troubles(memcache_case(1, 2, "ock.mmc.meta_service_url = http://somewhere\n")) == ["memcache.config"]
