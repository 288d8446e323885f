"""The host's objects as a worker sees them when it is built, for the modes a deployment runs in."""

from types import SimpleNamespace

from mindie_kvpool_plugin.host import modes


class Wrapper(SimpleNamespace):
    """A model wrapper; the host's can be referred to weakly."""

    __hash__ = object.__hash__


def deployment(
    *,
    tp=1,
    dp=1,
    cp=1,
    sp=1,
    distributed=False,
    is_async=False,
    multimodal=False,
    lora=False,
    backend="atb",
    weights="weights",
    **config,
):
    """The arguments of ``modes.active_modes``; ``config`` goes to the plugin's construction."""

    def group(size):
        return SimpleNamespace(group_size=size, rank=0)

    mapping = SimpleNamespace(attn_dp=group(dp), attn_tp=group(tp))
    wrapper = Wrapper(mapping=mapping, is_multimodal=multimodal, model_id=weights)
    wrapper.adapter_manager = object() if lora else None
    return (
        SimpleNamespace(model_wrapper=wrapper, distributed_enable=distributed, backend_type=backend),
        SimpleNamespace(
            spcp_parallel_info=SimpleNamespace(cp_size=cp, sp_size=sp),
            context_params=SimpleNamespace(async_infer=is_async),
        ),
        {"plugin_type": "prefix_cache,kv_pool", "model_role": "standard", **config},
    )


def active(**settings):
    """The modes found in such a deployment."""
    return modes.active_modes(*deployment(**settings))
