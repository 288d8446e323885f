"""What `make dist` makes: the same bytes each time, all that belongs in it, and a wheel that shows the product."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import pytest
import tomllib

from tests.host.conftest import ROOT

pytestmark = pytest.mark.skipif(
    subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode != 0,
    reason="a release is made from a commit, and this is no checkout",
)


def make_dist(work):
    """Everything for a release, built in folders of its own."""
    (work / "tmp").mkdir(parents=True)
    environment = {
        **os.environ,
        "OUT": str(work / "dist"),
        "TMPDIR": str(work / "tmp"),
        "PYTHON": sys.executable,
    }
    done = subprocess.run(
        [ROOT / ".ci" / "dist"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return work / "dist"


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """One release."""
    return make_dist(tmp_path_factory.mktemp("one"))


def test_release_has_the_same_bytes_each_time(dist, tmp_path):
    """Neither the folder nor the clock shows."""
    os.utime(ROOT / "README.md")
    again = make_dist(tmp_path / "another_folder_with_a_longer_name")
    assert (again / "SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()
    assert len((dist / "SHA256SUMS").read_text().splitlines()) >= 2


def test_release_has_a_pure_wheel_and_one_for_this_machine(dist):
    """The one says the oldest glibc it runs on, so that a package index takes it."""
    names = sorted(path.name for path in dist.glob("*.whl"))
    assert any(name.endswith("-py3-none-any.whl") for name in names)
    if shutil.which("cc") or shutil.which("gcc"):
        assert any(re.search(rf"-cp310-abi3-manylinux.*_{os.uname().machine}\.whl$", name) for name in names), names


def test_sdist_holds_every_file_of_the_commit(dist):
    """Who packages it can build it and run its tests."""
    command = ["git", "ls-tree", "-r", "--name-only", "HEAD"]
    committed = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines())
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    held = {member.name.partition("/")[2] for member in members}
    linked = {"mindie_kvpool_plugin/conf_examples", "mindie_kvpool_plugin/schemas"}  # their files are there instead
    assert committed - held - linked == set()
    assert {(member.uid, member.gid, member.uname) for member in members} == {(0, 0, "")}


def test_wheels_are_readable_by_everybody(dist):
    """Whatever the umask of who built them: a service user reads them, too."""
    for path in dist.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            modes = {entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
        assert {mode & 0o044 for mode in modes} == {0o044}, path.name


def test_wheels_differ_in_the_extension_only(dist):
    """The same Python files whatever the machine."""
    contents = []
    for path in dist.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            names = [
                entry for entry in archive.namelist() if not entry.endswith((".so", "/")) and ".dist-info/" not in entry
            ]
            contents.append({name: archive.read(name) for name in names})
    assert len(contents) >= 1
    assert all(each == contents[0] for each in contents)


def test_installed_wheel_shows_the_demo(fresh):
    """The main job, from the installed files alone."""
    shown = fresh.run(
        "import sys; sys.argv = ['mindie-kvpool', 'demo', '--pool', 'local_dram', '--requests', '8'];"
        "from mindie_kvpool_plugin.cli.main import main; main()",
        env={"COLUMNS": "120"},
    )
    assert "local_dram" in shown


def licences():
    """Package -> licence, of the table for users."""
    text = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([A-Za-z0-9_-]+)` \| ([^|]+?) \|", text, re.MULTILINE))


def requirements():
    """What the package and its extras ask for, without what only its developers install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    shipped = [each for name, wanted in extras.items() if name != "dev" for each in wanted]
    return {re.match(r"[A-Za-z0-9_-]+", each)[0] for each in project["dependencies"] + shipped}


def test_every_dependency_is_listed_with_its_licence():
    """So that who ships an image knows."""
    assert set(licences()) == requirements()


@pytest.mark.parametrize("name", sorted(licences()) if Path(ROOT, "docs", "licences.md").exists() else [])
def test_licence_is_the_one_the_package_states(name):
    """Held against the metadata of what is installed here."""
    try:
        stated = metadata(name)
    except ModuleNotFoundError:
        pytest.skip(f"{name} is not installed here")
    words = " ".join(
        [stated.get("License-Expression") or "", stated.get("License") or ""]
        + [each for each in stated.get_all("Classifier") or [] if each.startswith("License")]
    )
    assert licences()[name].split()[0].split("-")[0].lower() in words.lower()
