"""The installed wheel meets a stand-in host on disk: every hook, all or none, and nothing left behind."""

import json
import py_compile
import shutil

import pytest

from mindie_kvpool_plugin.host.compat import PLACES

UTILS = "mindie_llm.text_generator.plugins.plugin_utils"
STATUS = """
from mindie_kvpool_plugin.cli.main import main
try:
    main(["status"])
except SystemExit as end:
    print("exit", end.code)
"""
POOL_FILE = {"capacity": "1MB", "kv_pool": {}}


@pytest.fixture
def pool_file(tmp_path):
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(POOL_FILE))
    return path


def test_a_plain_interpreter_only_gets_a_trigger(armed):
    """Without the host: one finder, none of the heavy modules."""
    code = (
        "import sys; print([type(f).__name__ for f in sys.meta_path][0],"
        " [m for m in ('wrapt', 'numpy', 'torch', 'mindie_llm') if m in sys.modules])"
    )
    assert armed.run(code) == "Trigger []\n"


def test_the_plugin_list_and_the_validator_know_kv_pool(armed):
    """Row 1: named before prefix_cache, whatever the order in the user's plugin_type."""
    code = f"""
import {UTILS} as u
v = u.PluginParameterValidator(0)
print(u.PLUGIN_WHITE_LIST.index("kv_pool") < u.PLUGIN_WHITE_LIST.index("prefix_cache"))
print(v.validate('{{"plugin_type":"prefix_cache,kv_pool"}}')[2])
"""
    assert armed.run(code) == "True\n['kv_pool', 'prefix_cache']\n"


def test_the_plugin_class_is_importable_under_the_hosts_name(armed):
    """Row 2: module and class are found by the rule the plugin manager uses, and count as a plugin."""
    code = """
import importlib
m = importlib.import_module("mindie_llm.text_generator.plugins.kv_pool.kv_pool_plugin")
from mindie_llm.text_generator.plugins.plugin import Plugin
print(m.KvPoolPlugin.__name__, issubclass(m.KvPoolPlugin, Plugin))
"""
    assert armed.run(code) == "KvPoolPlugin True\n"


@pytest.mark.parametrize(("plugin_type", "clients"), [("prefix_cache,kv_pool", 0), ("prefix_cache", 1)])
def test_the_hosts_own_pool_client_stands_aside(armed, pool_file, plugin_type, clients):
    """Row 3: beside kv_pool PrefixCachePlugin builds no client; without kv_pool it does; the fields come back."""
    code = f"""
import types
from mindie_llm.text_generator.mempool.base import MemPool
built = []
MemPool.create_pool = classmethod(lambda cls, *a, **k: built.append(k) or object())
from mindie_llm.text_generator.plugins.prefix_cache.prefix_cache_plugin import PrefixCachePlugin
class Anything(types.SimpleNamespace):
    def __getattr__(self, name):
        return Anything()
    def __int__(self):
        return 1
    __index__ = __int__
backend = Anything(kv_pool_backend="local_dram", kv_pool_config_path={str(pool_file)!r}, kv_pool_async_write=False)
PrefixCachePlugin(backend, Anything(), Anything(), Anything(), plugin_type={plugin_type!r})
print(len(built), backend.kv_pool_backend, backend.kv_pool_config_path == {str(pool_file)!r})
"""
    assert armed.run(code) == f"{clients} local_dram True\n"


@pytest.mark.parametrize(("plugin_type", "kind"), [("prefix_cache,kv_pool", 0), ("prefix_cache", 2)])
def test_the_model_is_built_without_pool_events(armed, pool_file, plugin_type, kind):
    """Row 4: get_model_wrapper sees mempool_type DISABLED beside kv_pool, and what was configured without it."""
    code = f"""
import json
import mindie_llm.modeling.model_wrapper as w
seen = []
w.get_model_wrapper = lambda model_config, backend_type: seen.append(int(model_config["mempool_type"]))
from mindie_llm.text_generator.adapter import generator_backend as g
from mindie_llm.text_generator.plugins.plugin_manager import MemPoolType
config = {{"plugin_params": json.dumps({{"plugin_type": {plugin_type!r}}}), "kv_pool_backend": "local_dram",
          "kv_pool_config_path": {str(pool_file)!r}, "mempool_type": MemPoolType.ASYNC_WRITE}}
g.get_model_wrapper(config, "atb")
print(seen)
"""
    assert armed.run(code) == f"[{kind}]\n"


def test_the_context_store_tells_its_subscriber_before_it_forgets(armed):
    """Row 5: finished and dropped sequences, told to the plugin of that instance only, before the original runs."""
    code = """
from mindie_llm.text_generator.utils import tg_infer_context_store as t
from mindie_kvpool_plugin.host import free_events
Store = t.TGInferContextStore
mine, other = Store.__new__(Store), Store.__new__(Store)
class Plugin:
    infer_context, told = mine, []
    def sequences_finished(self, ids): self.told.append(("finished", list(ids)))
    def sequences_dropped(self, ids): self.told.append(("dropped", list(ids)))
    def contexts_reset(self): self.told.append(("reset",))
plugin = Plugin()
free_events.subscribe(plugin)
for store in (mine, other):
    for call in (lambda: store.clear_finished_context([7], [1]), lambda: store.clear_context_by_seq_ids([8]),
                 lambda: store.reset_all_context()):
        try:
            call()
        except AttributeError:
            pass  # the original runs after us on an empty object
print(plugin.told)
"""
    assert armed.run(code) == "[('finished', [7]), ('dropped', [8]), ('reset',)]\n"


def test_the_scheduler_gets_our_lookup_for_a_file_with_our_section(armed, pool_file):
    """Row 6: two positional arguments, as C++ calls it."""
    code = f"""
from mindie_llm.text_generator.mempool import MemPool
pool = MemPool.create_pool("local_dram", {str(pool_file)!r})
print(type(pool).__name__, pool.batch_exist(["5_0_1_m", "6_0_1_m"]))
"""
    assert armed.run(code) == "SchedulerLookup [False, False]\n"


@pytest.mark.parametrize("section", ["no section", "worker role"])
def test_everybody_else_gets_the_hosts_own_pool(armed, tmp_path, section):
    """Row 6, the other half: without the section, or for a worker, the original answers."""
    path = tmp_path / "pool.json"
    path.write_text(json.dumps({} if section == "no section" else POOL_FILE))
    role = "" if section == "no section" else ', role="worker"'
    code = f"""
from mindie_llm.text_generator.mempool import MemPool
try:
    MemPool.create_pool("no_such_backend", {str(path)!r}{role})
except ValueError as error:
    print("the host says:", type(error).__name__)
"""
    assert armed.run(code) == "the host says: ValueError\n"


@pytest.mark.parametrize(
    "first",
    [UTILS, "mindie_llm.text_generator.plugins.kv_pool.kv_pool_plugin", "mindie_llm.text_generator.generator"],
)
def test_the_order_of_imports_does_not_matter(armed, first):
    """Whatever the host imports first, the same hooks are there."""
    code = f"""
import importlib
importlib.import_module({first!r})
u = importlib.import_module({UTILS!r})
m = importlib.import_module("mindie_llm.text_generator.plugins.kv_pool.kv_pool_plugin")
print("kv_pool" in u.PLUGIN_WHITE_LIST, u.PLUGIN_WHITE_LIST.count("kv_pool"), m.KvPoolPlugin.__name__)
"""
    assert armed.run(code) == "True 1 KvPoolPlugin\n"


def test_arming_after_the_host_was_imported_works_too(armed):
    """An interpreter started without .pth files calls arm itself."""
    code = f"""
import sys
from mindie_kvpool_plugin.host import activate
activate.disarm()
import {UTILS} as u
before = "kv_pool" in u.PLUGIN_WHITE_LIST
activate.arm(); activate.arm()
print(before, u.PLUGIN_WHITE_LIST.count("kv_pool"))
"""
    assert armed.run(code) == "False 1\n"


def test_one_log_line_names_the_host_and_what_is_hooked(armed):
    """Printed when the host is imported, not before."""
    lines = armed.run(f"import {UTILS}", both=True).strip().splitlines()
    assert len(lines) == 1
    assert "MindIE-LLM 3.0.0" in lines[0]
    assert "kv_pool" in lines[0]


def test_the_kill_switch_leaves_the_host_alone_and_says_so(armed):
    """MINDIE_KVPOOL_DISABLE=1: no name, no hook, one line."""
    code = f"import {UTILS} as u, sys; print(u.PLUGIN_WHITE_LIST, 'wrapt' in sys.modules and 0)"
    output = armed.run(code, env={"MINDIE_KVPOOL_DISABLE": "1"}, both=True)
    assert "kv_pool'" not in output
    assert "stays out of MindIE-LLM: MINDIE_KVPOOL_DISABLE=1" in output


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("text_generator/utils/tg_infer_context_store.py", "def clear_finished_context(", "def clear_done(", "missing"),
        (
            "text_generator/utils/tg_infer_context_store.py",
            "def get_seq_lens(self, context_handles",
            "def get_seq_lens(self, slots",
            "takes (self, slots",
        ),
        (
            "text_generator/mempool/base.py",
            "def create_pool(cls, backend",
            "def create_pool(cls, kind",
            "takes (cls, kind",
        ),
        ("text_generator/generator.py", "def copy_blocks(", "def duplicate_blocks(", "missing"),
        ("text_generator/generator.py", "def swap(self, block_operation)", "def swap(self, cpu, npu)", "takes"),
        ("text_generator/plugins/plugin_utils.py", "PLUGIN_WHITE_LIST", "PLUGINS", "PLUGIN_WHITE_LIST is missing"),
        ("text_generator/adapter/generator_backend.py", None, None, "cannot read its source"),
        ("utils/status.py", "import os\n", "from os import _exit\n", "os is missing"),
        ("connector/request_listener/request_listener.py", "def stop(self)", "def end(self)", "stop is missing"),
    ],
)
def test_an_incompatible_host_is_left_untouched(fresh, file, old, new, named):
    """One place does not fit: no hook is set anywhere, and one line says which place and why."""
    host = fresh.add_host()
    path = host / file
    if old is None:
        path.rename(path.with_suffix(".txt"))
    else:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    code = """
import sys
import mindie_llm.text_generator.plugins.plugin_utils as u
names = getattr(u, "PLUGIN_WHITE_LIST", None) or u.PLUGINS
import mindie_llm.text_generator.mempool.base as b
print("kv_pool" in names, type(b.MemPool.__dict__["create_pool"]).__name__,
      "mindie_llm.text_generator.plugins.kv_pool" in sys.modules)
"""
    output = fresh.run(code, both=True)
    assert output.startswith("False classmethod False\n")
    assert "stays out of MindIE-LLM" in output
    assert named in output


def compile_only(host):
    """Leave compiled files only, where Python finds them without their sources."""
    for path in host.rglob("*.py"):
        py_compile.compile(str(path), str(path.with_suffix(".pyc")), doraise=True)
        path.unlink()


def test_a_host_of_compiled_files_only_is_hooked_like_any_other(fresh):
    """Images may leave the sources out: places are judged by their code, and the version is known."""
    compile_only(fresh.add_host())
    code = f"""
import {UTILS} as u
from mindie_llm.utils import status
from mindie_kvpool_plugin.host import compat
report = compat.inspect_host()
print(u.__file__.endswith(".pyc"), "kv_pool" in u.PLUGIN_WHITE_LIST)
print(type(status.os).__name__, report.fits, report.version)
"""
    assert fresh.run(code) == "True True\n_LeavingOs True 3.0.0+simulator\n"


@pytest.mark.parametrize(
    ("damage", "named"),
    [(lambda code: b"\0\0\0\0" + code[4:], "bad magic number"), (lambda code: code[:20], "marshal data")],
)
def test_a_compiled_file_that_cannot_be_read_keeps_the_package_out(fresh, damage, named):
    """Of another Python, or cut off: one line says which file and what is wrong with it; the host is as it was."""
    host = fresh.add_host()
    compile_only(host)
    path = host / "text_generator" / "generator.pyc"
    path.write_bytes(damage(path.read_bytes()))
    output = fresh.run(f"import {UTILS} as u; print('kv_pool' in u.PLUGIN_WHITE_LIST)", both=True)
    assert output.startswith("False\n")
    assert "stays out of MindIE-LLM" in output
    assert "text_generator.generator: cannot read its source" in output
    assert named in output


def test_a_worker_that_ends_leaves_the_pool_first(armed):
    """At a SIGTERM before the host closes its channels, and where a core thread exits; else ``os`` is as it was."""
    code = """
import os
from mindie_llm.connector.request_listener import request_listener as r
from mindie_llm.utils import status
from mindie_kvpool_plugin.host import leaving
told = []
leaving.leave = lambda: told.append("leave")
class Listener(r.RequestListener):
    def __init__(self): self.channels = {"only": type("Channel", (), {"put": lambda self, _: told.append("close")})()}
print(Listener().stop(), told, status.os.getpid() == os.getpid(), type(os).__name__, flush=True)
told.clear()
os._exit, real = (lambda code: told.append(code)), os._exit
def fail(): raise KeyError("a block")
thread = status.CoreThread(target=fail)
thread.start(); thread.join()
print(told, flush=True)
real(0)
"""
    assert armed.run(code) == "True ['leave', 'close'] True module\n['leave', 1]\n"


def test_a_broken_dependency_never_breaks_the_interpreter(fresh):
    """wrapt cannot be imported: the host is imported as without us, and one line says why."""
    fresh.add_host()
    (fresh.site / "wrapt.py").write_text("raise RuntimeError('planted')\n")
    output = fresh.run(f"import {UTILS} as u; print('kv_pool' in u.PLUGIN_WHITE_LIST)", both=True)
    assert output.startswith("False\n")
    assert "stays out of MindIE-LLM" in output
    assert "planted" in output


def test_status_judges_what_the_wheel_installed(armed):
    """The daemon's and the workers' interpreter are this one: every place is judged, and the hooks are set."""
    output = armed.run(STATUS, env=armed.as_service())
    assert output.count("MindIE-LLM: 3.0.0") == 2
    assert output.count(f"{len(PLACES)} of {len(PLACES)} places fit") == 2
    assert output.endswith("result: all hooks will be set, in the daemon and in the workers\nexit 0\n")


def test_status_without_a_host_says_so(fresh):
    """A laptop has no MindIE-LLM."""
    output = fresh.run(STATUS, env=fresh.as_service())
    assert "MindIE-LLM: not installed" in output
    assert output.endswith("exit 1\n")


def test_uninstalling_leaves_nothing_behind(fresh):
    """No .pth, no module, no hook."""
    host = fresh.add_host()
    assert (fresh.site / "mindie_kvpool_plugin.pth").exists()
    fresh.uninstall()
    assert not [path.name for path in fresh.site.iterdir() if "kvpool" in path.name.lower()]
    code = f"""
import sys
import {UTILS} as u
print([type(f).__name__ for f in sys.meta_path if 'Trigger' in type(f).__name__], u.PLUGIN_WHITE_LIST)
"""
    assert fresh.run(code) == "[] ['la', 'memory_decoding', 'mtp', 'prefix_cache']\n"
    assert host.exists()


def test_the_wheel_is_importable_without_torch_mooncake_and_host(wheel, tmp_path):
    """Only the package itself is installed: it imports, and its command line says what is missing."""
    from .conftest import Environment

    bare = Environment(tmp_path / "bare", wheel).install()
    assert bare.run("import mindie_kvpool_plugin as p; print(p.__version__)") == "0.1.0\n"


def test_the_wheel_asks_for_no_torch(wheel):
    """Installed inside a MindIE image it must not replace the image's torch."""
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        required = [
            line
            for line in archive.read(metadata).decode().splitlines()
            if line.startswith("Requires-Dist") and "extra ==" not in line
        ]
    names = [line.split(":")[1].split(">")[0].split("=")[0].strip() for line in required]
    assert "torch" not in names
    assert "torch-npu" not in names
    assert {"wrapt", "numpy", "click", "jsonschema", "lark"} <= set(names)


def test_an_editable_install_carries_the_start_up_hook_too(tmp_path):
    """The wheel that pip makes for ``pip install -e`` holds the .pth file, recorded for uninstalling."""
    import os
    import subprocess
    import sys
    import zipfile

    from .conftest import ROOT

    copy = tmp_path / "source"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "*.egg-info", ".*_cache"))
    code = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True, env=os.environ.copy())
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        (record,) = [name for name in archive.namelist() if name.endswith("RECORD")]
        assert "mindie_kvpool_plugin.pth" in archive.namelist()
        assert "mindie_kvpool_plugin.pth,sha256=" in archive.read(record).decode()
