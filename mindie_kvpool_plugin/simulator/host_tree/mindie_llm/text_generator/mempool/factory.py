"""Pool clients by name."""

NATIVE_BACKENDS = ("unifiedcache", "mooncake", "memcache")


def CreatePool(backend, config_path, role, **kwargs):
    if backend not in NATIVE_BACKENDS:
        raise ValueError(f"{backend} is no pool of this host (asked for as {role})")
    from mindie_llm.text_generator.mempool.native_mempool import NativeMempool  # noqa: PLC0415 - a native pool derives from MemPool

    return NativeMempool(config_path, role, **kwargs)
