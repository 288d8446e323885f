"""The places in MindIE-LLM this package hooks, and whether an installed host still has them.

Judged from the host's files, compiled and never run: so the answer is there before the first hook is set, and all
hooks are set or none.  An image may carry compiled files only (``.pyc``): they say the same.
"""

from __future__ import annotations

import dis
import importlib.machinery
import importlib.metadata
import inspect
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

from mindie_kvpool_plugin.support import Text

HOST_PACKAGE = "mindie_llm"
TESTED_VERSIONS = ("3.0.0",)
"""Versions whose published source this package was run against (3.0.0 is the tag 3.0.0.beta.3 of its repository).

What differs in those known by their history, none of which was run:

* up to 2.2.RC1, where kvPoolConfig appears: prefix_cache belongs on decode nodes, too;
* 3.0.0.beta.1: the backends are unifiedcache and mooncake; memcache came with beta.2;
* 3.0.0.beta.2: ``asyncWrite``, ``maxN`` and ``maxJsonDepth`` are unknown keys; a decode node takes prefix_cache;
* 3.0.0: a decode node refuses prefix_cache, asyncWrite refuses splitfuse.

``inspect_host`` judges the places below only.  What else is taken for granted (fields, the order of calls, who counts
what) is in ``tests/host/test_host_contract.py``: run it with MINDIE_LLM_SRC set before a version is added here.
"""

PLUGINS = "mindie_llm.text_generator.plugins"
PLUGIN_UTILS = f"{PLUGINS}.plugin_utils"
PLUGIN_MANAGER = f"{PLUGINS}.plugin_manager"
PREFIX_CACHE_MODULE = f"{PLUGINS}.prefix_cache.prefix_cache_plugin"
GENERATOR_BACKEND = "mindie_llm.text_generator.adapter.generator_backend"
CONTEXT_STORE = "mindie_llm.text_generator.utils.tg_infer_context_store"
MEMPOOL = "mindie_llm.text_generator.mempool.base"
GENERATOR = "mindie_llm.text_generator.generator"
REQUEST_LISTENER = "mindie_llm.connector.request_listener.request_listener"
CORE_THREADS = "mindie_llm.utils.status"


@dataclass(frozen=True, slots=True)
class Place:
    """Something of the host a hook relies on.

    Attributes:
        module: dotted name.
        name: dotted name inside the module.
        parameters: leading parameters a function must have, by name; None for a plain name.
        why: what the hook does there, for people.
    """

    module: str
    name: str
    parameters: tuple[str, ...] | None
    why: Text


PLACES = (
    Place(
        PLUGIN_UTILS,
        "PLUGIN_WHITE_LIST",
        None,
        Text("kv_pool runs before prefix_cache", "kv_pool 先于 prefix_cache 运行"),
    ),
    Place(PLUGIN_UTILS, "PLUGIN_FIELDS", None, Text("the validator's rule for kv_pool", "校验器中 kv_pool 的规则")),
    Place(PLUGIN_UTILS, "PLUGIN_CHECK_FUNC", None, Text("the validator's rule for kv_pool", "校验器中 kv_pool 的规则")),
    Place(
        PLUGIN_UTILS,
        "PluginParameterValidator.__init__",
        ("self", "speculation_gamma"),
        Text("the validator accepts kv_pool", "校验器接受 kv_pool"),
    ),
    Place(f"{PLUGINS}.plugin", "Plugin", None, Text("KvPoolPlugin counts as a plugin", "KvPoolPlugin 被视为插件")),
    Place(
        PREFIX_CACHE_MODULE,
        "PrefixCachePlugin.__init__",
        ("self", "generator_backend", "kvcache_settings", "infer_context"),
        Text("the host's own pool client stands aside", "MindIE-LLM 自带的池客户端让位"),
    ),
    Place(
        GENERATOR_BACKEND,
        "get_model_wrapper",
        None,
        Text("no graph with events nobody pops", "不构建含无人取走事件的图"),
    ),
    Place(
        PLUGIN_MANAGER,
        "PluginManager.initialize",
        ("self",),
        Text("batches that fail under asynchronous scheduling", "异步调度下失败的批次"),
    ),
    Place(
        CONTEXT_STORE,
        "TGInferContextStore.clear_finished_context",
        ("self", "sequence_ids", "context_handles"),
        Text("free event of finished sequences", "序列结束时的释放事件"),
    ),
    Place(
        CONTEXT_STORE,
        "TGInferContextStore.clear_context_by_seq_ids",
        ("self", "sequence_ids"),
        Text("free event of aborted and preempted sequences", "序列中止、被抢占时的释放事件"),
    ),
    Place(CONTEXT_STORE, "TGInferContextStore.reset_all_context", ("self",), Text("recovery", "故障恢复")),
    Place(
        CONTEXT_STORE,
        "TGInferContextStore.get_all_input_ids",
        ("self", "context_handles"),
        Text("a sequence's tokens", "序列的 token"),
    ),
    Place(
        CONTEXT_STORE,
        "TGInferContextStore.get_seq_lens",
        ("self", "context_handles"),
        Text("a sequence's length", "序列的长度"),
    ),
    Place(
        GENERATOR,
        "Generator.copy_blocks",
        ("self", "src_dst_map"),
        Text("blocks written by a copy (n, best_of, beams)", "拷贝写入的块（n、best_of、beam）"),
    ),
    Place(
        GENERATOR, "Generator.swap", ("self", "block_operation"), Text("blocks written by a swap-in", "换入写入的块")
    ),
    Place(
        GENERATOR,
        "PDInterface.pull_kv",
        ("self", "input_metadata", "p_d_infos"),
        Text("blocks written by a pull from a prefill node", "从 Prefill 节点拉取写入的块"),
    ),
    Place(
        GENERATOR,
        "Generator.load_lora",
        ("self", "lora_name", "lora_path"),
        Text("an adapter gets other content", "适配器内容更换"),
    ),
    Place(GENERATOR, "Generator.unload_lora", ("self", "lora_name"), Text("an adapter goes", "适配器卸载")),
    Place(
        GENERATOR,
        "Generator.execute_recover_command",
        ("self", "command"),
        Text("a device is closed and repaired", "设备关闭与修复"),
    ),
    Place(
        MEMPOOL,
        "MemPool.create_pool",
        ("cls", "backend", "config_path", "role"),
        Text("the scheduler's lookups", "调度器的查询"),
    ),
    Place(
        REQUEST_LISTENER,
        "RequestListener.stop",
        ("self",),
        Text("a worker that stops leaves the pool", "停止的 worker 退出池"),
    ),
    Place(
        CORE_THREADS, "CoreThread.run", ("self",), Text("a worker that exits leaves the pool", "退出的 worker 退出池")
    ),
    Place(CORE_THREADS, "os", None, Text("a worker that exits leaves the pool", "退出的 worker 退出池")),
)


@dataclass(frozen=True, slots=True)
class HostReport:
    """What was found of the host.

    Attributes:
        directory: its package directory; None when it is not installed.
        version: as its distribution or its package says, or "unknown".
        problems: (place, what is wrong) for each place that does not fit; empty when all do.
    """

    directory: Path | None
    version: str
    problems: tuple[tuple[Place, str], ...]

    @property
    def fits(self) -> bool:
        """Whether every hook can be set."""
        return self.directory is not None and not self.problems


def host_version() -> str:
    """The version of the host that would be imported, "unknown" or "none"."""
    directory = _find()
    return "none" if directory is None else _version(directory)


def inspect_host() -> HostReport:
    """Find the host on ``sys.path`` and judge every place; imports nothing of it."""
    directory = _find()
    if directory is None:
        return HostReport(None, "none", ())
    codes: dict[str, types.CodeType | str] = {}
    problems = []
    for place in PLACES:
        if place.module not in codes:
            codes[place.module] = _compiled(directory, place.module)
        code = codes[place.module]
        problem = code if isinstance(code, str) else _judge(code, place)
        if problem:
            problems.append((place, problem))
    return HostReport(directory, _version(directory), tuple(problems))


def _find() -> Path | None:
    spec = importlib.machinery.PathFinder.find_spec(HOST_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _compiled(directory: Path, module: str) -> types.CodeType | str:
    """A module's code, or why it cannot be had; of a file without source it has to be this interpreter's."""
    path = directory.joinpath(*module.split(".")[1:]).with_suffix(".py")
    try:
        if path.exists() or not (compiled := path.with_suffix(".pyc")).exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the host's own, told when it is imported
                return compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
        code = importlib.machinery.SourcelessFileLoader(module, str(compiled)).get_code(module)
    except (OSError, SyntaxError, ValueError) as error:
        return f"cannot read its source: {error}"
    except (ImportError, EOFError) as error:
        return f"cannot read its source, and of the compiled file: {error}"
    return code if code is not None else "cannot read its source"


def _judge(code: types.CodeType, place: Place) -> str | None:
    outer, _, inner = place.name.partition(".")
    if inner:
        classes = [each for each in _defined(code, outer) if not each.co_flags & inspect.CO_OPTIMIZED]
        if not classes:
            return f"class {outer} is missing"
        code = classes[-1]
    wanted = inner or outer
    if place.parameters is None:
        return None if wanted in _bound(code) else f"{wanted} is missing"
    functions = [each for each in _defined(code, wanted) if each.co_flags & inspect.CO_OPTIMIZED]
    if not functions:
        return f"{place.name} is missing"
    found = functions[-1].co_varnames[: functions[-1].co_argcount]
    if found[: len(place.parameters)] != place.parameters:
        return f"{place.name} takes ({', '.join(found)}), expected ({', '.join(place.parameters)}, ...)"
    return None


def _defined(code: types.CodeType, name: str) -> list[types.CodeType]:
    """Bodies of the functions and classes of this name that a module or class defines."""
    return [each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == name]


def _bound(code: types.CodeType) -> dict[str, object]:
    """Names that a module or class binds, each with the constant it was bound to last, if it was one."""
    found: dict[str, object] = {}
    constant: object = None
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            found[str(step.argval)] = constant
        constant = step.argval if step.opname == "LOAD_CONST" else None
    return found


def _version(directory: Path) -> str:
    for name in ("mindie-llm", "mindie_llm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    code = _compiled(directory, HOST_PACKAGE + ".__init__")
    version = None if isinstance(code, str) else _bound(code).get("__version__")
    return "unknown" if version is None else str(version)
