"""Build: the package, its C extension, and the .pth file that arms its import hooks in every interpreter.

A .pth file is only read from the top of site-packages, where setuptools puts no data file by
itself.  So two build steps are extended: ``build_py`` for wheels, ``editable_wheel`` for
``pip install -e``.  Both record the file, so that uninstalling removes it.

The extension uses the limited API: one wheel (cp310-abi3) serves CPython 3.10 and later.  It is optional:
without a compiler the wheel is py3-none-any and the Python twins of its functions run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

PTH_NAME = "mindie_kvpool_plugin.pth"
# site.py executes .pth lines that begin with "import": one statement, nothing that can fail loudly
PTH_LINE = (
    "import sys; exec('try:\\n"
    " from mindie_kvpool_plugin.host.activate import arm\\n arm()\\n"
    "except ImportError:\\n pass')\n"
)


class BuildPyWithPth(build_py):
    """``build_py`` that also writes the .pth file beside the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, PTH_NAME).write_text(PTH_LINE, encoding="ascii")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs: list[str] = super().get_outputs(include_bytecode)
        if not self.editable_mode:
            outputs.append(str(Path(self.build_lib, PTH_NAME)))
        return outputs


class EditableWheelWithPth(editable_wheel):
    """``editable_wheel`` that adds the .pth file to the wheel pip installs from."""

    def _select_strategy(self, *args: Any, **kwargs: Any) -> Any:
        strategy = super()._select_strategy(*args, **kwargs)
        return _StrategyWithPth(strategy)


class _StrategyWithPth:
    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __enter__(self) -> Any:
        self._strategy.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> Any:
        return self._strategy.__exit__(*exc_info)

    def __call__(self, wheel: Any, *args: Any, **kwargs: Any) -> None:
        self._strategy(wheel, *args, **kwargs)
        wheel.writestr(PTH_NAME, PTH_LINE)


class BdistWheelByContent(bdist_wheel):
    """``bdist_wheel`` that claims a platform only if something was compiled for it."""

    def get_tag(self) -> tuple[str, str, str]:
        tag: tuple[str, str, str] = super().get_tag()
        compiled = any(Path(path).exists() for path in self.get_finalized_command("build_ext").get_outputs())
        return tag if compiled else ("py3", "none", "any")


NATIVE = Extension(
    "mindie_kvpool_plugin._native",
    sources=["mindie_kvpool_plugin/_native.c"],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],  # CPython 3.10
    extra_compile_args=["-O3"],
    py_limited_api=True,
    optional=True,
)

REQUIRES = [
    "wrapt>=1.15",  # post-import hooks and method wrapping in the host
    "numpy>=1.22",  # block tables and addresses are arrays; every MindIE image has it
    "click>=8.1",  # command line
    "jsonschema-rs>=0.39",  # configuration check: validates in a fifth of jsonschema's start-up time
    "lark>=1.2",  # configuration check: positions and error recovery; pure Python
]
EXTRAS = {
    # what the simulator and the demo need beside a pool; on an NPU host the image brings its own torch
    "demo": [
        "torch>=2.1",  # device memory stand-in
        "rich>=13",  # progress bar and tables
    ],
    # Mooncake for machines without an NPU; an NPU host installs mooncake-transfer-engine-npu instead
    "mooncake": ["mooncake-transfer-engine-non-cuda==0.3.13.post1; platform_system == 'Linux'"],
    "verify": ["xxhash>=3.1"],  # kv_pool.verify_payload: xxh3 in C, of which Python's library has no equal in speed
    "dev": [
        "xxhash>=3.1",  # tests of verify_payload
        "pytest>=8",  # test runner
        "hypothesis>=6",  # the C functions against their Python twins
        "ruff>=0.6",  # lint and format
        "mypy>=1.11",  # types
        "build>=1.2",  # wheels for the installation tests
        "setuptools>=77",  # builds those wheels without a download
        "wheel>=0.43",  # the same
        "hypothesis>=6",  # fuzzing of the configuration check
    ],
}

setup(
    name="mindie-kvpool-plugin",
    version="0.1.0",
    description="KV-cache pooling plugin for Huawei MindIE-LLM: HBM blocks spill to a DRAM pool and come back",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MulanPSL-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["mindie_kvpool_plugin", "mindie_kvpool_plugin.*"]),
    package_data={
        "mindie_kvpool_plugin": ["py.typed", "schemas/*.json", "locale/*.json"],
        "mindie_kvpool_plugin.simulator": ["data/*.jsonl", "host_tree/**/*.py"],
    },
    include_package_data=False,
    ext_modules=[NATIVE],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["mindie-kvpool = mindie_kvpool_plugin.cli.main:main"]},
    cmdclass={
        "build_py": BuildPyWithPth,
        "editable_wheel": EditableWheelWithPth,
        "bdist_wheel": BdistWheelByContent,
    },
    classifiers=[
        "License :: OSI Approved :: Mulan Permissive Software License v2 (MulanPSL-2.0)",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
    ],
)
