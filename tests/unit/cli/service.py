"""A service's surroundings on disk: interpreters in virtual environments, the package, a stand-in host, a script."""

import ast
import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "mindie_kvpool_plugin"
HOST = PACKAGE / "simulator" / "host_tree" / "mindie_llm"
SYSTEM_PATH = "/usr/bin:/bin"
LIBRARIES = ("wrapt", "numpy", "numpy.libs")
STARTED = "the worker was started"


def pth_line():
    """What the wheel's .pth file holds."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "PTH_LINE":
            return ast.literal_eval(node.value)
    raise AssertionError("setup.py has no PTH_LINE")


class Interpreter:
    """A virtual environment with what the hooks need, and nothing of ours yet."""

    def __init__(self, folder, base=None):
        self.folder = folder
        if base is None:
            venv.create(folder, symlinks=True, with_pip=False)
        else:
            subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
        self.bin = folder / "bin"
        self.python = self.bin / "python3"
        (self.site,) = folder.glob("lib/python3*/site-packages")
        for borrowed in LIBRARIES:
            found = Path(sysconfig.get_path("purelib"), borrowed)
            if found.exists():
                (self.site / borrowed).symlink_to(found)

    def install(self, site=None, version=None, copied=False):
        """This package and its .pth file, as pip lays them down."""
        site = site or self.site
        site.mkdir(parents=True, exist_ok=True)
        (site / "mindie_kvpool_plugin.pth").write_text(pth_line())
        if version is None and not copied:
            (site / PACKAGE.name).symlink_to(PACKAGE)
            return self
        left_out = shutil.ignore_patterns("__pycache__", "simulator", "schemas", "conf_examples")
        shutil.copytree(PACKAGE, site / PACKAGE.name, ignore=left_out)
        if version is not None:
            (site / PACKAGE.name / "__init__.py").write_text(f'__version__ = "{version}"\n')
        return self

    def add_host(self, copied=False):
        """The stand-in host."""
        if copied:
            shutil.copytree(HOST, self.site / "mindie_llm", ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (self.site / "mindie_llm").symlink_to(HOST)
        return self

    def add_backend(self, first_line=None, folder=None):
        """The workers' script; running it would leave a trace."""
        script = (folder or self.bin) / "mindie_llm_backend"
        script.parent.mkdir(exist_ok=True)
        body = f"open({str(self.folder / STARTED)!r}, 'w').close()"
        script.write_text(f"{first_line or f'#!{self.python}'}\n{body}\n")
        script.chmod(0o755)
        return script


class Status:
    """What the command said."""

    def __init__(self, result):
        self.code = result.exit_code
        self.text = result.output
        self.daemon, _, self.worker = result.output.partition("workers (mindie_llm_backend)")


def status(*words, path, **env):
    """Run the command in the environment a service would be started from."""
    folders = ":".join(str(each) for each in path)
    unset = {"PYTHONPATH": None, "PYTHONNOUSERSITE": None, "MINDIE_LLM_HOME_PATH": None, "MINDIE_KVPOOL_DISABLE": None}
    runner = CliRunner(env={**unset, "PATH": folders, **env})
    return Status(runner.invoke(main, ["status", "--lang", "en", *[str(word) for word in words]]))


def status_json(*words, path, **env):
    """The same as an object."""
    found = status("--format", "json", *words, path=path, **env)
    return found.code, json.loads(found.text)


def base_python():
    """The interpreter outside of any virtual environment."""
    return Path(sys._base_executable).resolve()
