"""A fresh environment with the built wheel, next to a stand-in mindie_llm on disk."""

import importlib.machinery
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "mindie_kvpool_plugin" / "simulator" / "host_tree" / "mindie_llm"


class Environment:
    """A virtual environment without pip's help: our wheel is unpacked the way pip does, everything heavy is borrowed.

    Attributes:
        site: its site-packages.
    """

    def __init__(self, directory, wheel):
        self.directory = directory
        venv.create(directory, with_pip=False, symlinks=True)
        self.python = directory / "bin" / "python"
        self.site = Path(self.run("import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        self.wheel = wheel

    def install(self):
        """Install the wheel with the outer pip, without its dependencies."""
        self._pip("install", "--no-deps", "--no-index", str(self.wheel))
        return self

    def uninstall(self):
        """Remove it again."""
        self._pip("uninstall", "--yes", "mindie-kvpool-plugin")

    def borrow(self):
        """See the outer environment's numpy, wrapt, click and torch, but not its editable install of us."""
        outer = sysconfig.get_path("purelib")
        # appended by a .pth of our own, which does not execute the .pth files found there
        (self.site / "zz_borrowed.pth").write_text(outer + "\n")
        return self

    def add_host(self):
        """Put the stand-in host beside."""
        shutil.copytree(STAND_IN, self.site / "mindie_llm", ignore=shutil.ignore_patterns("__pycache__"))
        return self.site / "mindie_llm"

    def as_service(self):
        """Variables of a service that starts this interpreter, and its workers with it."""
        script = self.python.parent / "mindie_llm_backend"
        script.write_text(f"#!{self.python}\n")
        script.chmod(0o755)
        return {"PATH": f"{self.python.parent}:/usr/bin:/bin"}

    def run(self, code, *, check=True, env=None, both=False):
        """Run Python code in it; its standard output, with standard error behind it if asked for."""
        done = subprocess.run(
            [str(self.python), "-c", code],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env={"PATH": "/usr/bin:/bin", **(env or {})},
            timeout=120,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done.stdout + (done.stderr if both else "")

    def _pip(self, *arguments):
        subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", "--python", str(self.python), *arguments],
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},  # not in there
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )


LEFT_OUT = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "*.so")


def build_wheel(work, **env):
    """A wheel, built from a copy of the tree so that no build folder appears in it."""
    source = work / "source"
    shutil.copytree(
        ROOT,
        source,
        symlinks=True,
        ignore=shutil.ignore_patterns(*LEFT_OUT),
    )
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work / "dist"), str(source)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **env},
    )
    (path,) = (work / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this tree."""
    return build_wheel(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="session")
def armed(wheel, tmp_path_factory):
    """An environment with wheel and host, for tests that change nothing in it."""
    environment = Environment(tmp_path_factory.mktemp("armed") / "env", wheel).install().borrow()
    environment.add_host()
    return environment


@pytest.fixture
def fresh(wheel, tmp_path):
    """An environment of a test's own, without host."""
    return Environment(tmp_path / "env", wheel).install().borrow()


@pytest.fixture(scope="session")
def host_source():
    """The real host's package folder: MINDIE_LLM_SRC/mindie_llm, or an installed one; never the stand-in."""
    named = os.environ.get("MINDIE_LLM_SRC")
    if named:
        return Path(named, "mindie_llm")
    elsewhere = [entry for entry in sys.path if STAND_IN.parent != Path(entry or ".").resolve()]
    spec = importlib.machinery.PathFinder.find_spec("mindie_llm", elsewhere)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs MindIE-LLM: set MINDIE_LLM_SRC to a source tree")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture
def source(host_source):
    """Path inside the package -> the file."""
    return lambda name: host_source / name


@pytest.fixture
def cpp(host_source):
    """Text of a file of the scheduler, which only a source tree has."""
    folder = host_source.parent / "src"
    if not folder.is_dir():
        pytest.skip("needs MindIE-LLM's C++ source: set MINDIE_LLM_SRC to a source tree")
    return lambda name: (folder / name).read_text(encoding="utf-8")
