"""Commands that keep running, each in a process of its own; and the pool file they are given."""

import json
import os
import subprocess
import sys
from pathlib import Path

from mindie_kvpool_plugin.simulator.mooncake_master import HOST
from tests.conftest import free_port

ROOT = Path(__file__).parents[1]
START_S = 60


def pool_file(folder, address=None, **keys):
    path = folder / "kv_pool.json"
    content = {"local_hostname": HOST, "master_server_address": address or f"{HOST}:{free_port()}", "protocol": "tcp"}
    path.write_text(json.dumps({**content, "kv_pool": {}, **keys}), encoding="utf-8")
    return path


class Started:
    """``mindie-kvpool <name> ...``."""

    def __init__(self, name, *args, **env):
        command = [sys.executable, "-m", "mindie_kvpool_plugin", name, *map(str, args)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LANG": "C", **env},
        )

    @property
    def pid(self):
        return self.process.pid

    def line(self):
        """The next one on standard output, which it has to say."""
        found = self.process.stdout.readline()
        assert found, self.process.stderr.read()
        return found

    def hear(self, text):
        """Wait for a line on standard error that holds the text."""
        for line in self.process.stderr:
            if text in line:
                return line
        raise AssertionError(f"ended with {self.process.wait()} without saying {text!r}")

    def tell(self, how):
        self.process.send_signal(how)

    def end(self, how=None):
        """Status and what is left of standard error."""
        if how is not None:
            self.process.send_signal(how)
        _, errors = self.process.communicate(timeout=START_S)
        return self.process.returncode, errors

    def finish(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
