"""MindIE's HTTP endpoint on top of the simulated host, whose hits are real: /v1/models and /v1/completions.

The contract is the host's: ``prompt`` may be token ids, ``cached_tokens`` counts what the device had.
"""

import http.server
import json
import threading
from contextlib import contextmanager
from pathlib import Path

from mindie_kvpool_plugin.simulator.engine import Engine
from mindie_kvpool_plugin.simulator.engine_config import EngineConfig
from mindie_kvpool_plugin.simulator.run import POOL_PLUGINS
from tests.conftest import HOST

EXAMPLE = Path(__file__).parents[1] / "conf_examples" / "laptop_tcp" / "config.json"
MODEL = "simulated"
WEIGHTS = {
    "model_type": "qwen2",
    "torch_dtype": "float16",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 256,
    "max_position_embeddings": 32768,
    "vocab_size": 1024,
}
BLOCK_TOKENS = 16
LONGEST_TOKENS = 320


class StandIn:
    """One service.

    Attributes:
        engine: the host behind it.
        spoil: changes an answer's tokens, given the tokens and how often the prompt was asked.
    """

    def __init__(self, engine):
        self.engine = engine
        self.spoil = lambda answer, times: answer
        self._asked = {}
        self._turn = threading.Lock()
        self.server = http.server.ThreadingHTTPServer((HOST, 0), self._handler())
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def port(self):
        return self.server.server_address[1]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def complete(self, asked):
        with self._turn:
            prompt = asked["prompt"]
            request = self.engine.submit(prompt, asked["max_tokens"])
            self.engine.run()
            for worker in self.engine.workers:
                worker.wait_until_idle()
            times = self._asked[tuple(prompt)] = self._asked.get(tuple(prompt), 0) + 1
            answer = self.spoil(list(request.answer), times)
        details = {"cached_tokens": request.hbm_blocks * self.engine.config.block_size}
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": details}
        return {"choices": [{"index": 0, "text": " ".join(map(str, answer))}], "usage": usage}

    def _handler(self):
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self._say({"object": "list", "data": [{"id": MODEL}]} if self.path == "/v1/models" else None)

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._say(service.complete(asked) if self.path == "/v1/completions" else None)

            def _say(self, found):
                data = json.dumps(found).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        return Handler


@contextmanager
def standing_in(pool_file, tp=2, hbm_blocks=48, plugins=POOL_PLUGINS, **more):
    """A service with an engine of its own; ``more`` is of the engine."""
    config = EngineConfig(
        block_size=BLOCK_TOKENS, hbm_blocks=hbm_blocks, tp=tp, plugins=plugins, backend="mooncake",
        pool_file=str(pool_file), model_name=MODEL, max_seq_len=LONGEST_TOKENS + BLOCK_TOKENS, **more,
    )  # fmt: skip
    with Engine(config) as engine:
        service = StandIn(engine)
        try:
            yield service
        finally:
            service.close()


def write_config(folder, pool_file, port, devices=(0, 1), **server):
    """The service's config.json: a shipped example with what a test changes, and weights that say the cache's shape."""
    content = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    weights = folder / "weights"
    weights.mkdir(exist_ok=True)
    (weights / "config.json").write_text(json.dumps(WEIGHTS))
    (weights / "config.json").chmod(0o640)
    backend = content["BackendConfig"]
    content["ServerConfig"] |= {"ipAddress": HOST, "port": port, "httpsEnabled": False, **server}
    backend["npuDeviceIds"] = [list(devices)]
    backend["kvPoolConfig"] = {"backend": "mooncake", "configPath": str(pool_file), "asyncWrite": False}
    deploy = backend["ModelDeployConfig"]
    deploy |= {"maxInputTokenLen": LONGEST_TOKENS, "maxSeqLen": LONGEST_TOKENS + BLOCK_TOKENS}
    deploy["ModelConfig"][0] |= {
        "modelName": MODEL,
        "modelWeightPath": str(weights),
        "worldSize": len(devices),
        "plugin_params": json.dumps({"plugin_type": "prefix_cache,kv_pool"}),
    }
    backend["ScheduleConfig"]["cacheBlockSize"] = BLOCK_TOKENS
    path = folder / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    path.chmod(0o640)
    return path
