"""Two prompts through a service whose hits are real; and a service that lies, forgets, misses a rank, or is none."""

import http.server
import socket
import threading

import numpy as np
import pytest

from mindie_kvpool_plugin.core.reload import Reload
from mindie_kvpool_plugin.doctor.acceptance import prompts as probe
from mindie_kvpool_plugin.doctor.acceptance import running
from tests.conftest import HOST
from tests.standin_service import standing_in, write_config
from tests.unit.doctor.acceptance.conftest import told, trial_of, troubles, write_pool
from tests.unit.doctor.conftest import state_of

PROMPTS = ("pool_file", "service", "prompts")


def test_prompts_come_from_the_pool_with_the_same_answers_and_leave_nothing(beside, settled, service):
    """Every promised token was loaded, nothing was wrong, and the pool is as it was."""
    before, corruptions = state_of(settled), service.engine.oracle.corruptions
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == []
    assert [line.params["prompt"] for line in lines["prompts.hit"]] == ["A", "B"]
    assert all(line.params["loaded"] == line.params["expected"] > 0 for line in lines["prompts.hit"])
    assert len(lines["prompts.same"]) == 2
    assert state_of(settled) == before
    assert service.engine.oracle.corruptions == corruptions


def test_a_different_answer_with_a_hit_fails(beside, service):
    """Also when everything was loaded: what came from the pool must have been wrong."""
    service.spoil = lambda answer, times: [*answer[:-1], 7] if times > 2 else answer
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == ["prompts.different"]
    line = lines["prompts.different"][0]
    assert line.params["pool"] != line.params["computed"] == line.params["device"]
    assert "verify_payload" in line.fix("en")


def test_an_answer_that_differs_on_the_device_too_is_not_the_pools(beside, service):
    """The service's own prefix cache does the same: told, not failed."""
    service.spoil = lambda answer, times: [*answer[:-1], 7] if times > 1 else answer
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == []
    assert lines["prompts.same_as_device"][0].verdict == "warning"


def test_a_service_that_does_not_ask_the_pool_fails(beside, service, settled, monkeypatch):
    """The blocks are there, and nothing is loaded."""
    before = state_of(settled)
    monkeypatch.setattr(service.engine._lookup, "batch_exist", lambda keys: [False] * len(keys))
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == ["prompts.no_hit"]
    assert lines["prompts.no_hit"][0].params["loaded"] == 0
    assert "mindie-kvpool why" in lines["prompts.no_hit"][0].fix("en")
    assert state_of(settled) == before


def test_a_hit_that_ends_early_fails(beside, service, monkeypatch):
    """The scheduler learns of two blocks only."""
    ask, keys_of_two = service.engine._lookup.batch_exist, 2 * service.engine.config.tp
    monkeypatch.setattr(
        service.engine._lookup,
        "batch_exist",
        lambda keys: [found and at < keys_of_two for at, found in enumerate(ask(keys))],
    )
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == ["prompts.part_hit"]
    assert lines["prompts.part_hit"][0].params["loaded"] == 2 * service.engine.config.block_size
    assert len(lines["prompts.same"]) == 2


def test_hits_that_are_computed_because_that_is_faster_are_no_verdict_on_the_pool(beside, monkeypatch):
    """Not possible here, with what makes it possible; the answers are compared all the same."""

    def decline(self, hits):
        computed = np.array([hit.computed for hit in hits], dtype=np.int64)
        return computed, computed

    monkeypatch.setattr(Reload, "_fetch", decline)
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == []
    assert [line.verdict for line in lines["prompts.cheaper"]] == ["skipped"] * 2
    assert '"load": "always"' in lines["prompts.cheaper"][0].fix("en")
    assert len(lines["prompts.same"]) == 2


def test_blocks_that_are_stored_from_their_second_use_on_are_found(tmp_path, settled):
    """Admission second_use: each prompt is asked twice before it is looked for."""
    pool = write_pool(tmp_path, settled, {"load": "always", "admission": "second_use"})
    with standing_in(pool, tp=1) as service:
        lines = told(trial_of(write_config(tmp_path, pool, service.port, devices=(0,))), *PROMPTS)
    assert troubles(lines) == []
    assert len(lines["prompts.hit"]) == 2


def test_what_other_requests_load_meanwhile_makes_a_hit_unsure(beside, monkeypatch):
    """Told, not failed."""
    counts = iter(range(0, 4_000_000, 1_000_000))
    monkeypatch.setattr(running, "counts", lambda case: {0: running.Counts(next(counts))})
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == []
    assert lines["prompts.more_loaded"][0].verdict == "warning"


def test_a_node_of_a_divided_service_is_asked_through_its_coordinator(beside):
    """Which --url names."""
    case = beside()
    case.view.server["inferMode"] = "dmi"
    assert told(case, "service")["service.of_coordinator"][0].verdict == "skipped"
    assert "--url" in told(case, "service")["service.of_coordinator"][0].fix("en")
    case.url = f"http://{HOST}:1"
    assert "service.none" in told(case, "service")


def test_a_service_that_stores_nothing_fails(beside, service, settled, monkeypatch):
    """Told at once, before the device is filled."""
    monkeypatch.setattr(probe, "STORED_TIMEOUT_S", 1.0)
    for worker in service.engine.workers:
        monkeypatch.setattr(worker.plugin("kv_pool")._worker.walks.spill, "freed", lambda *_: None)
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == ["prompts.not_stored"]
    assert "prompts.filled" not in lines


def test_blocks_that_leave_the_pool_before_the_device_are_told(beside, monkeypatch):
    """A pool smaller than the device can never hit."""
    asked = iter([[99, 99], [0, 0]])
    monkeypatch.setattr(running, "held_blocks", lambda case, chains: next(asked))
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == ["prompts.pushed_out"]
    assert "mindie-kvpool plan" in lines["prompts.pushed_out"][0].fix("en")


def test_a_prompt_that_is_still_on_the_device_is_told(beside, service, monkeypatch):
    """Fillers that fill too little: no hit, and the reason."""
    monkeypatch.setattr(probe.Session, "_fill", lambda self: (0.0, True))
    lines = told(beside(), *PROMPTS)
    assert troubles(lines) == ["prompts.on_device"]
    assert lines["prompts.on_device"][0].params["cached"] > 0


def test_a_rank_that_does_not_answer_is_named(beside):
    """Three devices are configured, two ranks run."""
    lines = told(beside(devices=(0, 1, 2)), *PROMPTS)
    assert troubles(lines) == ["prompts.missing_rank"]
    assert lines["prompts.missing_rank"][0].params["devices"] == "2"
    assert "prompts.hit" in lines


def test_no_time_for_the_device_is_told_with_the_time_it_takes(beside, settled, monkeypatch):
    """Not possible here; what was sent before is removed."""
    before, case = state_of(settled), beside()
    monkeypatch.setattr(probe, "CLEANING_S", case.timeout_s)  # what is kept for that is more than there is
    lines = told(case, *PROMPTS)
    (line,) = lines["prompts.no_time"]
    assert line.verdict == "skipped"
    assert f"--timeout {line.params['timeout']}" in line.fix("en")
    assert state_of(settled) == before


def test_ranks_of_another_pool_file_are_nobody(alone, service):
    """Nobody could say what came from the pool: not possible here, not failed."""
    lines = told(alone(url=f"http://{HOST}:{service.port}"), *PROMPTS)
    assert troubles(lines) == []
    assert lines["prompts.no_ranks"][0].verdict == "skipped"
    assert "MINDIE_KVPOOL_RUN_DIR" in lines["prompts.no_ranks"][0].fix("en")


def test_without_a_service_the_rest_is_an_acceptance_of_its_own(alone):
    """The first run: not possible here, and what to do next."""
    lines = told(alone(), *PROMPTS)
    assert troubles(lines) == []
    assert lines["service.none"][0].verdict == "skipped"
    assert "prompts.not_tried" in lines


def test_a_service_that_never_answers_is_given_up(alone, monkeypatch):
    """It accepts connections, and that is all."""
    monkeypatch.setattr("mindie_kvpool_plugin.doctor.acceptance.service.CONNECT_TIMEOUT_S", 0.5)
    with socket.create_server((HOST, 0)) as silent:
        lines = told(alone(url=f"http://{HOST}:{silent.getsockname()[1]}"), *PROMPTS)
    assert troubles(lines) == ["service.silent"]


class Other(http.server.BaseHTTPRequestHandler):
    """Something else than MindIE."""

    body = b'{"data": [{"id": "another"}]}'

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"data": [{"id": "another"}]}', "service.other_model"),
        (b"<html>", "service.silent"),
        (b'{"data": 3}', "service.there"),
        (b"[" * 100_000, "service.silent"),
    ],
)
def test_another_service_is_named(alone, monkeypatch, body, name):
    """By its model, or because it is none."""
    monkeypatch.setattr(Other, "body", body)
    with http.server.ThreadingHTTPServer((HOST, 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        lines = told(alone(url=f"http://{HOST}:{server.server_address[1]}"), "pool_file", "service")
        server.shutdown()
        thread.join()
    assert name in lines


def test_a_service_with_https_is_not_possible_without_its_authority(alone):
    """The fix names the options."""
    with socket.create_server((HOST, 0)) as plain:
        port = plain.getsockname()[1]

        def answer():
            with plain.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        lines = told(alone(url=f"https://{HOST}:{port}"), *PROMPTS)
        thread.join()
    assert lines["service.tls"][0].verdict == "skipped"
    assert "--tls-ca" in lines["service.tls"][0].fix("en")
