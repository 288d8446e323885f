"""What the wheel is called and what is in it, with a compiler and without."""

import shutil
import zipfile

import pytest

from tests.host.conftest import build_wheel


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no compiler here")
def test_one_wheel_serves_every_python(wheel, armed):
    """With a compiler: the stable ABI of CPython 3.10, and the extension loads."""
    assert "-cp310-abi3-linux" in wheel.name
    code = "from mindie_kvpool_plugin.native import native; print(native.__name__)"
    assert armed.run(code) == "mindie_kvpool_plugin._native\n"


def test_without_a_compiler_the_wheel_is_pure_python(tmp_path):
    """The extension is left out, and the .pth file is still there."""
    path = build_wheel(tmp_path, CC="/no/compiler/here")
    names = zipfile.ZipFile(path).namelist()
    assert path.name.endswith("-py3-none-any.whl")
    assert not [name for name in names if name.endswith(".so")]
    assert "mindie_kvpool_plugin.pth" in names


def test_wheel_holds_the_product_and_none_of_its_trials(wheel):
    """The package and its start line, and no chaos, no soak, no benchmark, no test."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"mindie_kvpool_plugin", "mindie_kvpool_plugin.pth"}
    assert not [name for name in names if any(trial in name for trial in ("chaos", "soak", "fault_matrix", "bench"))]
    assert "mindie_kvpool_plugin/conf_examples/qwen_one_server/kv_pool.json" in names
