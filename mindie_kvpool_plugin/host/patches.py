"""The hooks: one small function per host name we touch, run right after its module was imported.

``attach`` registers all of them or, when the installed host does not have every place they rely on
(``host.compat``), none.  Nothing of the host is replaced: lists are extended in place, functions are
wrapped.  The last hook is a log line; it names the host's version and what was hooked, or why not.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

import wrapt

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.host import block_writes, compat, free_events, leaving, weights
from mindie_kvpool_plugin.host.activate import DISABLE_VARIABLE
from mindie_kvpool_plugin.host.eligibility import (
    PLUGIN_NAME,
    PREFIX_CACHE,
    parted_warning,
    plugin_words,
    why_off,
    words_of_params,
)
from mindie_kvpool_plugin.host.idle_pool import IdlePool
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.options.pool_file import has_section, read_pool_file

if TYPE_CHECKING:
    from mindie_kvpool_plugin.host.plugin import KvPoolPlugin

Wrapped = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]

_attached = False


def attach(disabled: bool) -> None:
    """Set every hook, or none and say why; a second call does nothing."""
    global _attached  # noqa: PLW0603 - hooks belong to the interpreter
    if _attached:
        return
    if disabled:
        logger.info("%s stays out of MindIE-LLM: %s=1", __version__, DISABLE_VARIABLE)
        return
    report = compat.inspect_host()
    if report.directory is None:
        return  # something else is about to fail to import the host
    if not report.fits:
        reasons = "; ".join(f"{place.module}: {problem}" for place, problem in report.problems)
        logger.warning(
            "%s stays out of MindIE-LLM %s, which is left as it is: %s", __version__, report.version, reasons
        )
        return
    _attached = True
    for module, hook in HOOKS.items():
        wrapt.register_post_import_hook(hook, module)
    logger.info(
        "%s waits in MindIE-LLM %s (tested with %s): plugin_type kv_pool, free events, scheduler lookups",
        __version__,
        report.version,
        ", ".join(compat.TESTED_VERSIONS),
    )


def is_attached() -> bool:
    """Whether every hook is set in this interpreter."""
    return _attached


def serve_plugin_module(plugins: types.ModuleType) -> None:
    """Make ``plugins.kv_pool.kv_pool_plugin`` importable; the plugin manager imports by name."""
    package_name = f"{plugins.__name__}.{PLUGIN_NAME}"
    package = types.ModuleType(package_name, "Served by mindie-kvpool-plugin.")
    package.__path__ = []
    package.__spec__ = ModuleSpec(package_name, None, is_package=True)
    module_name = f"{package_name}.{PLUGIN_NAME}_plugin"
    module = types.ModuleType(module_name, "Served by mindie-kvpool-plugin.")
    module.__spec__ = ModuleSpec(module_name, None)
    # torch and the pool are loaded when the class is asked for, not when the host is imported
    module.__getattr__ = _plugin_attribute  # type: ignore[method-assign]
    sys.modules[package_name] = package
    sys.modules[module_name] = module
    setattr(package, f"{PLUGIN_NAME}_plugin", module)
    setattr(plugins, PLUGIN_NAME, package)


def _plugin_attribute(name: str) -> Any:
    if name != "KvPoolPlugin":
        raise AttributeError(name)
    from mindie_llm.text_generator.plugins.plugin import Plugin  # noqa: PLC0415 - only inside the host

    from mindie_kvpool_plugin.host.plugin import KvPoolPlugin  # noqa: PLC0415 - imports torch

    Plugin.register(KvPoolPlugin)
    return KvPoolPlugin


def know_plugin_name(plugin_utils: types.ModuleType) -> None:
    """``kv_pool`` joins the white list before ``prefix_cache`` (its order is the call order) and gets a rule."""
    names = plugin_utils.PLUGIN_WHITE_LIST
    if PLUGIN_NAME not in names:
        names.insert(names.index(PREFIX_CACHE) if PREFIX_CACHE in names else len(names), PLUGIN_NAME)
    rule = {plugin_utils.PLUGIN_FIELDS: set(), plugin_utils.PLUGIN_CHECK_FUNC: lambda data: True}

    def add_rule(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> None:
        wrapped(*args, **kwargs)
        instance.rules.setdefault(PLUGIN_NAME, rule)

    wrapt.wrap_function_wrapper(plugin_utils, "PluginParameterValidator.__init__", add_rule)


def introduce_plugin_manager(plugin_manager: types.ModuleType) -> None:
    """The plugin manager tells ``kv_pool`` who it is: it knows of failed batches before they are reported."""

    def introduce(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        result = wrapped(*args, **kwargs)
        plugin = getattr(instance, PLUGIN_NAME, None)
        if plugin is not None:
            plugin.managed_by(instance)
        return result

    wrapt.wrap_function_wrapper(plugin_manager, "PluginManager.initialize", introduce)


def let_native_pool_stand_aside(prefix_cache_plugin: types.ModuleType) -> None:
    """While ``PrefixCachePlugin`` is built beside kv_pool it sees no pool: one writer, no double put."""

    def build_without_pool(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> None:
        del instance
        backend = args[0] if args else kwargs["generator_backend"]
        configured = backend.kv_pool_backend, backend.kv_pool_config_path
        words = plugin_words(kwargs.get("plugin_type"))
        if why_off(words, *configured) is not None:
            warning = parted_warning(words, *configured)
            if warning is not None:
                logger.warning("%s", warning)
            wrapped(*args, **kwargs)
            return
        backend.kv_pool_backend = backend.kv_pool_config_path = ""
        try:
            wrapped(*args, **kwargs)
        finally:
            backend.kv_pool_backend, backend.kv_pool_config_path = configured

    wrapt.wrap_function_wrapper(prefix_cache_plugin, "PrefixCachePlugin.__init__", build_without_pool)


def build_plain_graph(generator_backend: types.ModuleType) -> None:
    """Beside kv_pool the model is built without the host's pool events, which nobody would pop.

    The same call says where the weights come from, which not every model wrapper keeps.
    """

    def without_events(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        del instance
        config = args[0] if args else kwargs["model_config"]
        kind = config.get("mempool_type")
        words = words_of_params(config.get("plugin_params"))
        if kind is not None and not why_off(
            words,
            config.get("kv_pool_backend") or "",
            config.get("kv_pool_config_path") or "",
            config.get("role") or "standard",
        ):
            config["mempool_type"] = type(kind)(0)  # MemPoolType.DISABLED
        seen = weights.look(config.get("model_id"))
        model_wrapper = wrapped(*args, **kwargs)
        weights.remember(model_wrapper, config.get("model_id"), seen)
        return model_wrapper

    wrapt.wrap_function_wrapper(generator_backend, "get_model_wrapper", without_events)


def announce_freed_sequences(context_store: types.ModuleType) -> None:
    """Tell the plugin that subscribed to a context store which sequences it is about to forget."""

    def tell_finished(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin = free_events.subscriber(instance)
        if plugin is not None:
            plugin.sequences_finished(args[0] if args else kwargs["sequence_ids"])
        return wrapped(*args, **kwargs)

    def tell_dropped(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin = free_events.subscriber(instance)
        if plugin is not None:
            plugin.sequences_dropped(args[0] if args else kwargs["sequence_ids"])
        return wrapped(*args, **kwargs)

    def tell_reset(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin = free_events.subscriber(instance)
        if plugin is not None:
            plugin.contexts_reset()
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(context_store, "TGInferContextStore.clear_finished_context", tell_finished)
    wrapt.wrap_function_wrapper(context_store, "TGInferContextStore.clear_context_by_seq_ids", tell_dropped)
    wrapt.wrap_function_wrapper(context_store, "TGInferContextStore.reset_all_context", tell_reset)


def announce_written_blocks(generator: types.ModuleType) -> None:
    """Tell the plugin before the host writes blocks outside a batch, and around the repair of a device."""

    def tell_copies(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin = _plugin_of(instance)
        if plugin is not None:
            plugin.blocks_overwritten(lambda: block_writes.copied(_argument(args, kwargs, 0, "src_dst_map")))
        return wrapped(*args, **kwargs)

    def tell_swaps(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin = _plugin_of(instance)
        if plugin is not None:
            plugin.blocks_overwritten(lambda: block_writes.swapped_in(_argument(args, kwargs, 0, "block_operation")))
        return wrapped(*args, **kwargs)

    def tell_pulls(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin = _plugin_of(instance)
        if plugin is not None:
            plugin.blocks_pulled(lambda: block_writes.pulled(_argument(args, kwargs, 1, "p_d_infos")))
        result = wrapped(*args, **kwargs)
        if plugin is not None and block_writes.all_arrived(result):
            plugin.blocks_arrived(_argument(args, kwargs, 0, "input_metadata"), _argument(args, kwargs, 1, "p_d_infos"))
        return result

    def tell_recovery(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin, command = _plugin_of(instance), _argument(args, kwargs, 0, "command")
        if plugin is not None and command in block_writes.CLOSING_COMMANDS:
            plugin.device_closing()
        result = wrapped(*args, **kwargs)
        if plugin is not None and command == block_writes.OPENING_COMMAND:
            plugin.device_opened()
        return result

    wrapt.wrap_function_wrapper(generator, "Generator.copy_blocks", tell_copies)
    wrapt.wrap_function_wrapper(generator, "Generator.swap", tell_swaps)
    wrapt.wrap_function_wrapper(generator, "PDInterface.pull_kv", tell_pulls)
    wrapt.wrap_function_wrapper(generator, "Generator.execute_recover_command", tell_recovery)


def announce_adapters(generator: types.ModuleType) -> None:
    """Tell the plugin when an adapter's name stands for other content."""

    def tell_load(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin, name = _plugin_of(instance), _argument(args, kwargs, 0, "lora_name")
        if plugin is not None:
            plugin.adapter_changing(name)
        result = wrapped(*args, **kwargs)
        if plugin is not None:
            plugin.adapter_loaded(name)
        return result

    def tell_unload(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        plugin = _plugin_of(instance)
        if plugin is None:
            return wrapped(*args, **kwargs)
        name = _argument(args, kwargs, 0, "lora_name")
        plugin.adapter_changing(name)
        try:
            return wrapped(*args, **kwargs)
        finally:
            # a prompt that asked for it meanwhile found it still; from here on the host computes without an adapter
            plugin.adapter_changing(name)

    wrapt.wrap_function_wrapper(generator, "Generator.load_lora", tell_load)
    wrapt.wrap_function_wrapper(generator, "Generator.unload_lora", tell_unload)


def follow_generator(generator: types.ModuleType) -> None:
    """Everything the host's worker does beside its batches."""
    announce_written_blocks(generator)
    announce_adapters(generator)


def _plugin_of(generator: Any) -> KvPoolPlugin | None:
    return free_events.subscriber(getattr(generator, "infer_context", None))


def _argument(args: Args, kwargs: Kwargs, index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs[name]


def answer_scheduler(mempool: types.ModuleType) -> None:
    """A scheduler whose pool file has a ``kv_pool`` section gets our lookups; everybody else the host's pool.

    Except for a worker in which kv_pool serves: one writer, so the host's own client stands aside there, too.
    """

    def create_pool(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        del instance
        named = {**dict(zip(("backend", "config_path", "role"), args, strict=False)), **kwargs}
        path = named.get("config_path") or ""
        if not path or not has_section(path, unreadable=False):
            return wrapped(*args, **kwargs)
        if named.get("role", "scheduler") != "scheduler":
            # a decode node opens a client it never uses; beside kv_pool it would register the same memory again
            return IdlePool() if free_events.anybody_serves() else wrapped(*args, **kwargs)
        from mindie_kvpool_plugin.host.scheduler_lookup import build_lookup  # noqa: PLC0415 - numpy, only if asked

        return build_lookup(named["backend"], read_pool_file(path))

    wrapt.wrap_function_wrapper(mempool, "MemPool.create_pool", create_pool)


def leave_on_stop(request_listener: types.ModuleType) -> None:
    """At a SIGTERM the host closes its channels, and what waits there ends the process: the pool is told before."""

    def stop(wrapped: Wrapped, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        del instance
        leaving.leave()
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(request_listener, "RequestListener.stop", stop)


class _LeavingOs:
    """The module ``os`` as the host's core threads see it: whoever exits leaves the pool first."""

    def __init__(self, real: types.ModuleType) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _exit(self, status: int) -> None:
        leaving.leave()
        self._real._exit(status)


def leave_on_exit(core_threads: types.ModuleType) -> None:
    """A core thread ends the process after an exception, with ``os._exit``: no other code runs then."""
    core_threads.os = _LeavingOs(core_threads.os)  # type: ignore[attr-defined]


HOOKS: dict[str, Callable[[types.ModuleType], None]] = {
    compat.PLUGINS: serve_plugin_module,
    compat.PLUGIN_UTILS: know_plugin_name,
    compat.PLUGIN_MANAGER: introduce_plugin_manager,
    compat.PREFIX_CACHE_MODULE: let_native_pool_stand_aside,
    compat.GENERATOR_BACKEND: build_plain_graph,
    compat.CONTEXT_STORE: announce_freed_sequences,
    compat.GENERATOR: follow_generator,
    compat.MEMPOOL: answer_scheduler,
    compat.REQUEST_LISTENER: leave_on_stop,
    compat.CORE_THREADS: leave_on_exit,
}
"""Host module -> what is done right after it was imported."""
