"""Plugins of a step, and the manager that calls them."""

from mindie_llm.text_generator.plugins.plugin_manager import PluginManager


def get_plugin(plugin_list, plugin_config, plugin_utils, is_mix_model, watcher):
    backend, kvcache_settings, infer_context, output_filter, model_role = plugin_utils
    return PluginManager(
        backend,
        kvcache_settings,
        infer_context,
        output_filter,
        is_mix_model,
        plugin_list,
        model_role,
        watcher,
        **plugin_config,
    )
