"""Build: the C extension, and the .pth file that arms the import hooks in every interpreter.

Everything else is in pyproject.toml.

A .pth file is only read from the top of site-packages, where setuptools puts no data file by
itself.  So two build steps are extended: ``build_py`` for wheels, ``editable_wheel`` for
``pip install -e``.  Both record the file, so that uninstalling removes it.

The extension uses the limited API: one wheel (cp310-abi3) serves CPython 3.10 and later.  It is optional:
without a compiler the wheel is py3-none-any and the Python twins of its functions run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

PTH_NAME = "mindie_kvpool_plugin.pth"
# site.py executes .pth lines that begin with "import": one statement, nothing that can fail loudly
PTH_LINE = (
    "import sys; exec('try:\\n"
    " from mindie_kvpool_plugin.host.activate import arm\\n arm()\\n"
    "except (ImportError, OSError):\\n pass')\n"
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
    extra_compile_args=["-O3", "-g0"],  # no debug data: it would name the folder it was built in
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[NATIVE],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    cmdclass={
        "build_py": BuildPyWithPth,
        "editable_wheel": EditableWheelWithPth,
        "bdist_wheel": BdistWheelByContent,
    },
)
