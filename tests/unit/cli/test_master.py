"""mindie-kvpool master: prints what fits, runs a real master, and refuses what cannot work."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from mindie_kvpool_plugin.simulator.mooncake_master import HOST
from tests.commands import START_S, pool_file
from tests.conftest import free_port, wait_until

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "conf_examples"


def run(*args, lang="en"):
    return CliRunner().invoke(main, ["master", "--lang", lang, *map(str, args)], prog_name="mindie-kvpool")


@pytest.fixture
def start(begin):
    """A master's command in a process of its own."""
    return partial(begin, "master")


def child_of(pid):
    """The only child process."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(found) == 1
    return int(found[0])


def is_gone(pid):
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_master_serves_where_the_pool_file_says_and_ends_when_told(tmp_path, start, how):
    """Ready means that clients are served; systemd is told; the signal goes on and the status is the master's."""
    path, admin_port = pool_file(tmp_path), free_port()
    port = int(json.loads(path.read_text())["master_server_address"].rpartition(":")[2])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(START_S)
        command = start(path, "--metrics-port", admin_port, NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert systemd.recv(1024).startswith(b"READY=1\n")
        ready = command.line()
    assert f"{HOST}:{port}" in ready
    socket.create_connection((HOST, port), timeout=5).close()
    assert Admin(HOST, admin_port).health().is_ready
    master = child_of(command.process.pid)
    assert f"pid {master}" in ready
    status, errors = command.end(how)
    assert status == 0, errors
    assert is_gone(master)


def test_master_runs_without_standard_output(tmp_path):
    """Closed, not only redirected; what the master prints reaches no file or socket of ours."""
    path, admin_port = pool_file(tmp_path), free_port()
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "master", str(path), "--metrics-port", str(admin_port)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(START_S)
        with subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command],
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        ) as running:
            assert systemd.recv(1024).startswith(b"READY=1\n")
            master_output = os.readlink(f"/proc/{child_of(running.pid)}/fd/1")
            running.terminate()
            _, said = running.communicate(timeout=START_S)
    assert (running.returncode, said) == (0, b"")
    assert master_output == "/dev/null"


def test_status_says_which_signal_ended_the_master(tmp_path, start):
    """As shells do: 128 and the number."""
    command = start(pool_file(tmp_path), "--metrics-port", free_port())
    command.line()
    os.kill(child_of(command.process.pid), signal.SIGKILL)
    assert command.end()[0] == 128 + signal.SIGKILL


def test_no_master_is_left_when_the_command_is_killed(tmp_path, start):
    """SIGKILL cannot be forwarded: the port would stay taken."""
    command = start(pool_file(tmp_path), "--metrics-port", free_port())
    command.line()
    master = child_of(command.process.pid)
    command.end(signal.SIGKILL)
    wait_until(lambda: is_gone(master), 60, "the master's end")


@pytest.mark.parametrize("taken", ["rpc", "admin"])
def test_taken_port_is_named_before_anything_is_started(tmp_path, taken):
    """Mooncake itself says nothing about its RPC port."""
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        path = pool_file(tmp_path, f"{HOST}:{port}" if taken == "rpc" else None)
        result = run(path, "--metrics-port", port if taken == "admin" else free_port())
    assert result.exit_code == 2
    assert f"{HOST}:{port}" in result.stderr
    assert "is taken" in result.stderr


def test_a_second_master_is_told_of_the_first(tmp_path, master):
    """The usual reason."""
    result = run(pool_file(tmp_path, master.address), "--metrics-port", master.metrics_port)
    assert result.exit_code == 2
    assert "a mooncake_master serves already" in result.stderr


def test_flag_that_the_master_does_not_know_ends_it_with_its_own_words(tmp_path, start):
    """It is passed on; that nothing serves is said with the status."""
    command = start(pool_file(tmp_path), "--metrics-port", free_port(), "--", "--no_such_flag=1")
    status, errors = command.end()
    assert status == 2
    assert "no_such_flag" in errors
    assert "does not serve: it ended with status 1" in errors


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/kv_pool.json")))
def test_print_explains_the_flags_of_every_example(example, lang):
    """From the configuration, the pool file and the folder alike; nothing is started, also where it could not be."""
    folder = EXAMPLES / example
    results = [run(place, "--print", lang=lang) for place in (folder / "config.json", folder / "kv_pool.json", folder)]
    assert len({result.stdout for result in results}) == 1
    if example.startswith("memcache"):
        assert {result.exit_code for result in results} == {2}
        return
    assert {result.exit_code for result in results} == {0}
    line, _, reasons = results[0].stdout.partition("\n\n")
    address = json.loads((folder / "kv_pool.json").read_text())["master_server_address"]
    assert f"--rpc_port={address.rpartition(':')[2]}" in line
    assert "master.why" not in reasons
    for flag in line.split()[1:]:
        assert flag == "\\" or f"{flag}\n" in reasons


def test_print_for_programs(tmp_path):
    """The same line as words, and a reason for each flag."""
    told = json.loads(run(pool_file(tmp_path), "--print", "--format", "json", "--ssd").stdout)
    assert told["command"][-1] == "--offload_on_evict=true"
    assert [each["flag"] for each in told["flags"]] == told["command"][1:]
    assert all(each["why"] for each in told["flags"])


def test_print_says_what_keeps_it_from_starting_here(tmp_path):
    """On a laptop the line for a server is of use, too."""
    result = run(pool_file(tmp_path, "192.0.2.1:50051"), "--print")
    assert result.exit_code == 0
    assert "--rpc_address=192.0.2.1" in result.stdout
    assert "no address of this machine" in result.stderr


@pytest.mark.parametrize(
    ("address", "options", "expected"),
    [
        ("192.0.2.1:50051", (), "no address of this machine"),
        ("0.0.0.0:50051", (), "say --public"),
        ("127.0.0.1:50051", ("--bind", "0.0.0.0"), "say --public"),
        ("127.0.0.1:50051", ("--metrics-host", "0.0.0.0"), "say --public"),
        ("127.0.0.1:50051", ("--metrics-host", "192.0.2.1"), "no address of this machine"),
        ("etcd://10.0.0.1:2379", (), "--enable_ha"),
        ("no-such-host.invalid:50051", (), "cannot be resolved"),
        ("127.0.0.1", (), "master_server_address"),
        ("127.0.0.1:50051", ("--", "--rpc_port=1"), "contradicts the pool file"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tmp_path, address, options, expected):
    """Exit status 2, the thing and its fix."""
    result = run(pool_file(tmp_path, address), *options)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_all_addresses_may_be_meant(tmp_path):
    """With the explicit word."""
    result = run(pool_file(tmp_path, "0.0.0.0:50051"), "--print", "--public")
    assert result.exit_code == 0
    assert result.stderr == ""


def test_kv_events_are_warned_of(tmp_path):
    """The wheel's master takes the flag and ignores it."""
    result = run(pool_file(tmp_path), "--print", "--", "--enable_kv_events")
    assert result.exit_code == 0
    assert "does nothing" in result.stderr
    assert "--enable_kv_events" in result.stdout


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is no JSON"),
        ("{}", "names no pool file"),
        (
            '{"BackendConfig": {"kvPoolConfig": {"backend": "mooncake", "configPath": "/none.json"}}}',
            "names the pool file",
        ),
        ("ock.mmc.meta_service_url = tcp://127.0.0.1:5000", "MemCache"),
    ],
)
def test_other_files_are_told_from_pool_files(tmp_path, content, expected):
    """What it is, and where to go."""
    path = tmp_path / "some.json"
    path.write_text(content, encoding="utf-8")
    result = run(path)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_folders_must_hold_one_pool(tmp_path):
    """None and several are refused by name."""
    assert "neither" in run(tmp_path).stderr
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pool_file(tmp_path / name)
    assert "several pools" in run(tmp_path).stderr


def test_missing_program_names_the_command_that_installs_it(tmp_path, monkeypatch):
    """Not installed."""
    monkeypatch.setattr("mindie_kvpool_plugin.services.master.PROGRAM", "no_such_master")
    result = run(pool_file(tmp_path), "--metrics-port", free_port())
    assert result.exit_code == 2
    assert "pip install" in result.stderr


def test_missing_library_names_its_package(tmp_path, monkeypatch):
    """What the loader says becomes what to install."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "broken_master"
    loader = "broken_master: error while loading shared libraries: libibverbs.so.1: cannot open shared object file"
    program.write_text(f"#!/bin/sh\necho '{loader}: No such file or directory' >&2\nexit 127\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("mindie_kvpool_plugin.services.master.PROGRAM", "broken_master")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    result = run(pool_file(tmp_path), "--metrics-port", free_port())
    assert result.exit_code == 2
    assert "apt install libibverbs1" in result.stderr
