"""Why a prompt's prefix ended where it did; off unless ``kv_pool.why_requests`` asks for it."""
