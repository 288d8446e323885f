"""Versions and shared libraries, in a private copy of the environment where something must be missing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mindie_kvpool_plugin.doctor import software
from tests.unit.doctor.conftest import case_of, told, troubles

ROOT = Path(__file__).parents[3]


def test_versions_name_what_is_installed(pool_path_of, master):
    """Exactly one wheel of Mooncake."""
    lines = told(case_of(pool_path_of(master)), "versions")
    assert troubles(lines) == []
    assert lines["versions.self"].params["python"] == sys.version.split()[0]
    assert "mooncake-transfer-engine" in lines["versions.mooncake"].text("en")


@pytest.mark.parametrize(
    ("wheels", "expected"),
    [
        ({}, "versions.no_mooncake"),
        ({"mooncake-transfer-engine-npu": "1", "mooncake-transfer-engine-non-cuda": "1"}, "versions.two_mooncakes"),
    ],
)
def test_wheels_that_cannot_be(pool_path_of, master, monkeypatch, wheels, expected):
    """None, or two that own one package."""
    monkeypatch.setattr(software, "installed_wheels", lambda: wheels)
    assert troubles(told(case_of(pool_path_of(master)), "versions")) == [expected]


@pytest.fixture
def private_mooncake(tmp_path):
    """A copy of the package, some of whose modules ask the loader for another library."""
    import mooncake

    copy = tmp_path / "packages" / "mooncake"
    source = Path(mooncake.__path__[0])
    copy.mkdir(parents=True)
    for path in [*source.glob("*.py"), *source.glob("libetcd*.so"), *source.glob("libasio*.so")]:
        (copy / path.name).symlink_to(path)
    for path in source.parent.glob("mooncake_transfer_engine*.libs"):
        (copy.parent / path.name).symlink_to(path)

    def without(library, missing):
        data = (source / "store.so").read_bytes()
        assert library in data
        (copy / "store.so").write_bytes(data.replace(library, missing))
        return copy.parent

    return without


def doctor(path, packages):
    """The command in an interpreter that finds the copy first."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])}
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "doctor", str(path), "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.returncode, {line["id"]: line for line in json.loads(done.stdout)["lines"]}


def test_a_missing_libibverbs_is_named_with_its_package(private_mooncake, master, pool_path_of):
    """The import really fails; what needs it is not tried."""
    packages = private_mooncake(b"libibverbs.so.1\0", b"libibverbs.so.9\0")
    failed = subprocess.run(
        [sys.executable, "-c", "import mooncake.store"],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ImportError: libibverbs.so.9: cannot open shared object file" in failed.stderr
    status, lines = doctor(pool_path_of(master), packages)
    assert status == 1
    assert [name for name, line in lines.items() if line["verdict"] == "trouble"] == ["libraries.missing"]
    assert lines["libraries.missing"]["values"] == {"library": "libibverbs.so.9", "package": "libibverbs1"}
    assert "apt install libibverbs1" in lines["libraries.missing"]["fix"]
    assert {"client.not_tried", "transfer.not_tried"} <= lines.keys()
    assert "address.connected" in lines


def test_without_a_wheel_its_libraries_are_not_looked_for(monkeypatch, pool_path_of, master):
    """That it is missing is said once."""
    monkeypatch.setattr(software, "installed_wheels", dict)
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None)
    lines = told(case_of(pool_path_of(master)), "versions", "libraries", "pool_file", "address", "client")
    assert troubles(lines) == ["versions.no_mooncake"]
    assert {"libraries.not_tried", "client.not_tried"} <= lines.keys()


def test_a_library_of_cann_is_told_otherwise(monkeypatch, pool_path_of, master):
    """It comes with no package."""
    monkeypatch.setattr(software, "_not_found", lambda binaries: ["libascendcl.so", "libfoo.so.1"])
    lines = told(case_of(pool_path_of(master)), "libraries")
    assert troubles(lines) == ["libraries.cann", "libraries.unknown"]


def test_without_the_loaders_tool_the_import_itself_tells(private_mooncake, monkeypatch, pool_path_of, master):
    """Only the first that is missing, in the words of start-up."""
    packages = private_mooncake(b"libcurl.so.4\0", b"libcurl.so.9\0")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.syspath_prepend(str(packages))
    lines = told(case_of(pool_path_of(master)), "libraries")
    assert troubles(lines) == ["libraries.refused"]
    assert "apt install libcurl4" in lines["libraries.refused"].text("en")
