"""Every metric there is, in one table: what it is called where it is exposed, what it means, and where it is counted.

``docs/metrics.md`` and its Chinese twin are generated from it (``make schemas``); Prometheus and
``mindie-kvpool stats`` read counters through it.  Units: seconds, bytes; everything else is a number of things.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mindie_kvpool_plugin.observability.counters import Counters, Histogram
from mindie_kvpool_plugin.observability.identity import ObservedRole

PREFIX = "mindie_kvpool_"
PART_LABELS = ("role", "rank", "dp_rank")
"""Of every sample; ``mindie_kvpool_info`` says the rest of who that is."""

Kind = Literal["counter", "gauge", "histogram"]
Value = int | float | Histogram

WORKER: frozenset[ObservedRole] = frozenset({"worker"})
SCHEDULER: frozenset[ObservedRole] = frozenset({"scheduler"})
POOL: frozenset[ObservedRole] = frozenset({"worker", "scheduler"})
STORE: frozenset[ObservedRole] = frozenset({"store"})


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as exposed.
        kind, unit: as Prometheus takes them.
        en, zh: what it means.
        source: the counter it is read from; or, by label value, one counter each; empty: not from counters.
        labels: names of its labels, beside those of every sample.
        roles: who has it.
    """

    name: str
    kind: Kind
    unit: str
    en: str
    zh: str
    source: str | Mapping[str, str]
    labels: tuple[str, ...] = ()
    roles: frozenset[ObservedRole] = WORKER

    def samples(self, counters: Counters) -> Iterator[tuple[tuple[str, ...], Value]]:
        """Its values now, each with the values of its labels."""
        if not isinstance(self.source, str):
            yield from (((label,), getattr(counters, field)) for label, field in self.source.items())
            return
        value = getattr(counters, self.source)
        if isinstance(value, dict):
            # copied in one go: its writer may add a key meanwhile
            yield from sorted(value.copy().items())
        else:
            yield (), value


def _counter(name: str, unit: str, source: str | Mapping[str, str], en: str, zh: str, **more: Any) -> Metric:
    return Metric(f"{PREFIX}{name}_total", "counter", unit, en, zh, source, **more)


def _gauge(name: str, unit: str, source: str | Mapping[str, str], en: str, zh: str, **more: Any) -> Metric:
    return Metric(f"{PREFIX}{name}", "gauge", unit, en, zh, source, **more)


def _histogram(name: str, unit: str, source: str | Mapping[str, str], en: str, zh: str, **more: Any) -> Metric:
    return Metric(f"{PREFIX}{name}", "histogram", unit, en, zh, source, **more)


INFO = _gauge(
    "info",
    "",
    "",
    "Always 1; its labels say who that is. A scheduler has no model until it was asked for one.",
    "恒为 1；其标签说明身份。调度器在首次被问之前没有 model。",
    labels=("model", "backend", "namespace", "version", "pid"),
    roles=POOL,
)
STARTED = _gauge(
    "start_time_seconds",
    "seconds",
    "",
    "When counting began, in seconds since 1970.",
    "开始计数的时间，自 1970 年起的秒数。",
    roles=POOL,
)

METRICS: tuple[Metric, ...] = (
    INFO,
    STARTED,
    # -- the scheduler's questions
    _counter(
        "scheduler_questions",
        "questions",
        {"all": "answered_all", "some": "answered_some", "none": "answered_none"},
        "Questions of the host's scheduler, by how many of the blocks asked for were in the pool. "
        "A request that waits is asked for again at every step.",
        "宿主调度器的提问次数，按所问的块在池中的多少分类。等待中的请求每一步都会再问一次。",
        labels=("answer",),
        roles=SCHEDULER,
    ),
    _counter(
        "scheduler_remembered_questions",
        "questions",
        "remembered_questions",
        "Of these, answered from what the pool said a moment ago.",
        "其中用池刚刚给出的回答直接答复的次数。",
        roles=SCHEDULER,
    ),
    _counter(
        "scheduler_asked_keys",
        "keys",
        "asked_keys",
        "Keys the scheduler asked for: one per block and rank.",
        "调度器所问的键数：每块每 rank 一个。",
        roles=SCHEDULER,
    ),
    _counter(
        "scheduler_found_keys",
        "keys",
        "found_keys",
        "Of these, answered with yes: the leading ones up to the first miss.",
        "其中回答为“有”的键数：从头到第一个未命中为止。",
        roles=SCHEDULER,
    ),
    _counter(
        "scheduler_lookup_errors",
        "questions",
        "lookup_errors",
        "Questions answered with no because something unexpected happened; the log has it.",
        "因意外错误而回答“没有”的提问次数；详见日志。",
        roles=SCHEDULER,
    ),
    _histogram(
        "scheduler_lookup_seconds",
        "seconds",
        "lookup_seconds",
        "Time of one question as the scheduler waits for it.",
        "调度器等待一次提问的时间。",
        roles=SCHEDULER,
    ),
    # -- prompts and their hits
    _counter(
        "prompts",
        "prompts",
        "prompts",
        "Prompts this rank began.",
        "本 rank 开始处理的提示词数。",
    ),
    _counter(
        "promised_tokens",
        "tokens",
        "promised_tokens",
        "Prompt tokens the scheduler counted on the pool for.",
        "调度器指望从池中得到的提示词 token 数。",
    ),
    _counter(
        "loaded_tokens",
        "tokens",
        "loaded_tokens",
        "Of these, not computed because their blocks arrived on every rank.",
        "其中因块已在每个 rank 上到齐而无需计算的 token 数。",
    ),
    _histogram(
        "promised_depth_blocks",
        "blocks",
        "promised_depth",
        "Blocks promised per prompt that was promised any.",
        "每个得到承诺的提示词被承诺的块数。",
    ),
    _histogram(
        "loaded_depth_blocks",
        "blocks",
        "loaded_depth",
        "Blocks used from the pool per prompt that used any.",
        "每个用到池的提示词实际用到的块数。",
    ),
    _counter(
        "promised_blocks",
        "blocks",
        "promised_blocks",
        "Blocks of prompts that the scheduler counted on the pool for, on whichever rank they lie.",
        "调度器指望从池中得到的提示词块数，不论位于哪个 rank。",
    ),
    _counter(
        "recomputed_blocks",
        "blocks",
        {
            "not_delivered": "recomputed_not_delivered",
            "other_rank": "recomputed_other_rank",
            "pool_left_alone": "recomputed_pool_left_alone",
            "device_closed": "recomputed_device_closed",
            "device_busy": "recomputed_device_busy",
            "ranks_disagree": "recomputed_ranks_disagree",
            "cheaper_to_compute": "recomputed_cheaper",
            "over_budget": "recomputed_over_budget",
            "error": "recomputed_error",
        },
        "Promised blocks the host computed after all: this rank's did not arrive (evicted, failed or damaged), another "
        "rank's did not, the pool was left alone, the device was being repaired, the batch before had not left the "
        "device in time, the ranks could not agree on hits (ranks_agree), computing was faster (load), loading would "
        "have held the step up for longer than it may (reload_budget_ms), or something unexpected happened.",
        "承诺后仍由宿主计算的块数：本 rank 的块未到（被逐出、失败或损坏）、其他 rank 的块未到、池被搁置、设备正在修复、"
        "上一批未及时离开设备、各 rank 无法就命中达成一致（ranks_agree）、计算更快（load）、"
        "加载占用该步的时间将超出上限（reload_budget_ms），或发生意外错误。",
        labels=("reason",),
    ),
    _gauge(
        "ranks_agree",
        "",
        "ranks_agree",
        "1 while the ranks of a batch agree on its pool hits; 0 while they cannot and no hit is used.",
        "各 rank 能就同一批的池命中达成一致时为 1；无法达成一致、不使用任何命中时为 0。",
    ),
    _counter(
        "unpooled_requests",
        "requests",
        {"adapter": "unpooled_adapter", "unseen": "unpooled_unseen", "beams": "unpooled_beams"},
        "Requests that run without the pool, wholly or in part: with a LoRA adapter whose content is not known (yet); "
        "whose beginning was not seen here; of a beam search, of which only the prompt is stored.",
        "完全或部分不经过池的请求数：LoRA 适配器内容（尚）未知；请求的开头不在本处处理；束搜索（只存提示词）。",
        labels=("reason",),
    ),
    # -- the way back from the pool
    _counter(
        "reloaded_blocks",
        "blocks",
        "reloaded_blocks",
        "Blocks copied from the pool to this rank.",
        "从池拷贝到本 rank 的块数。",
    ),
    _counter("reloaded_bytes", "bytes", "reloaded_bytes", "Their bytes.", "其字节数。"),
    _counter(
        "failed_get_blocks",
        "blocks",
        "failed_get_blocks",
        "Blocks asked of the pool that did not arrive whole; pool_errors tells why.",
        "向池索取但未完整到达的块数；原因见 pool_errors。",
    ),
    _counter(
        "corrupt_blocks",
        "blocks",
        "corrupt_blocks",
        "Of these, damaged on the way or in the pool (only with verify_payload).",
        "其中在途中或池中损坏的块数（仅当 verify_payload 开启）。",
    ),
    _histogram(
        "reload_seconds",
        "seconds",
        "reload_seconds",
        "Time a prefill step with pool hits spent on loading them, other ranks waited for. The sum is what reloads "
        "cost.",
        "带有池命中的预填充步用于加载的时间，含等待其他 rank。其总和即加载的花费。",
    ),
    _gauge(
        "load_is_on",
        "",
        {"own": "load_is_on", "elsewhere": "load_elsewhere_is_on"},
        "1: pool hits are loaded; 0: they are computed, because loading takes longer here (load), and one prompt is "
        "tried now and then. place: the worker's own part of the pool, a copy in memory, or elsewhere, which is a "
        "network; own is all of a pool that has no such parts, as local_dram, or Mooncake without own segment.",
        "1：加载池命中；0：改为计算，因为此处加载更慢（load），并不时以一个提示词试探。"
        "place：own 为 worker 自己的那部分池，即内存拷贝；elsewhere 为其他位置，即经过网络。"
        "没有这种划分的池（如 local_dram，或没有自己的段的 Mooncake）全部算作 own。",
        labels=("place",),
    ),
    _counter(
        "load_switches",
        "switches",
        "load_switches",
        "Times it changed from one to the other.",
        "两者之间切换的次数。",
    ),
    _counter(
        "load_probes",
        "prompts",
        "load_probes",
        "Prompts loaded to see what loading takes now, though it did not seem to pay.",
        "虽似不划算、仍为得知当前加载耗时而加载的提示词数。",
    ),
    _gauge(
        "load_block_seconds",
        "seconds",
        {"own": "load_block_seconds", "elsewhere": "load_elsewhere_block_seconds"},
        "What loading a block takes from each place, on the slowest rank: the slope through its last 8 loads. 0 until "
        "3 were measured.",
        "最慢的 rank 上从各位置加载一个块的耗时：最近 8 次加载的斜率。测得 3 次之前为 0。",
        labels=("place",),
    ),
    _gauge(
        "load_call_seconds",
        "seconds",
        {"own": "load_call_seconds", "elsewhere": "load_elsewhere_call_seconds"},
        "What a load takes beside that, however few blocks it brings.",
        "除此之外每次加载的固定耗时，与块数无关。",
        labels=("place",),
    ),
    _gauge(
        "compute_block_seconds",
        "seconds",
        "compute_block_seconds",
        "What a prefill step takes longer for the tokens of one more block, on the slowest rank: the slope through its "
        "last steps of every size. It is what load_block_seconds is weighed against.",
        "最慢的 rank 上，预填充步每多计算一个块的 token 所增加的耗时：各种大小的最近若干步的斜率。"
        "load_block_seconds 与它相比较。",
    ),
    _gauge(
        "reload_budget_seconds",
        "seconds",
        "reload_budget_seconds",
        "How long fences and reloads may hold a step up, as of the last step with pool hits: reload_budget_ms, or what "
        "is derived from decode steps.",
        "围栏与加载最多可占用一步多久，以最近一个有池命中的步为准：reload_budget_ms，或由解码步耗时得出。",
    ),
    _counter(
        "declined_seconds",
        "seconds",
        {"load": "declined_load_seconds", "compute": "declined_compute_seconds"},
        "What loading would have taken for hits that were computed from the start, and what computing them took, as "
        "estimated at that moment.",
        "一开始就决定改为计算的命中，按当时估计：加载本需的秒数，以及计算所需的秒数。",
        labels=("way",),
    ),
    _counter(
        "saved_seconds",
        "seconds",
        "saved_seconds",
        "Prefill seconds that loaded tokens would have taken: tokens times prefill_token_seconds of that moment.",
        "加载的 token 若重新计算所需的预填充秒数：token 数乘以当时的 prefill_token_seconds。",
    ),
    _gauge(
        "net_seconds",
        "seconds",
        "net_seconds",
        "Seconds saved less seconds spent on reloads, since start. Below 0 the pool costs more than it saves.",
        "自启动以来节省的秒数减去加载花费的秒数。低于 0 表示池得不偿失。",
    ),
    _gauge(
        "prefill_token_seconds",
        "seconds",
        "prefill_token_seconds",
        "What computing a prompt token takes here: of the last 64 prefill steps of at least 64 tokens, the median of "
        "seconds per token, each step weighted with its tokens. 0 until one was measured.",
        "此处计算一个提示词 token 的耗时：最近 64 个至少含 64 个 token 的预填充步，"
        "以 token 数加权的每 token 秒数中位数。尚未测得时为 0。",
    ),
    # -- the way out to the pool
    _counter(
        "freed_blocks",
        "blocks",
        "freed_blocks",
        "Full blocks that sequences left behind.",
        "序列留下的满块数。",
    ),
    _counter(
        "spilled_blocks",
        "blocks",
        "spilled_blocks",
        "Blocks put into the pool by this rank.",
        "本 rank 放入池中的块数。",
    ),
    _counter("spilled_bytes", "bytes", "spilled_bytes", "Their bytes.", "其字节数。"),
    _counter(
        "renewed_blocks",
        "blocks",
        "renewed_blocks",
        "Blocks put by a sequence that did not write them: spilled or loaded before and offered again, in case the "
        "pool lost them; with admission second_use also those seen before and not stored then.",
        "由未写入它们的序列放入池中的块数：曾存入或加载、为防池已丢失而再次提供；"
        "admission 为 second_use 时还包括先前见过但未存储的块。",
    ),
    _counter(
        "kept_blocks",
        "blocks",
        "kept_blocks",
        "Freed blocks not offered because the pool is known to have them.",
        "因已知池中已有而未再提供的块数。",
    ),
    _counter(
        "unadmitted_blocks",
        "blocks",
        "unadmitted_blocks",
        "Freed blocks not offered because their tokens came for the first time (admission second_use).",
        "因其 token 首次出现而未提供的块数（admission 为 second_use）。",
    ),
    _counter(
        "unclaimed_blocks",
        "blocks",
        "unclaimed_blocks",
        "Freed blocks whose content is not certain, so not offered.",
        "内容不确定、因而未提供的块数。",
    ),
    _counter(
        "dropped_blocks",
        "blocks",
        {
            "queue_full": "dropped_queue_full",
            "pool_left_alone": "dropped_pool_left_alone",
            "device_closed": "dropped_device_closed",
            "over_budget": "dropped_over_budget",
            "withdrawn": "withdrawn_blocks",
            "put_failed": "failed_put_blocks",
        },
        "Blocks that should have gone to the pool and did not: the queue was full (queue_capacity_blocks, "
        "queue_capacity_bytes), the pool was left alone, the device was being repaired, the step that stores what it "
        "frees (asyncWrite false) had no time left (reload_budget_ms), a step needed the block sooner than its spill "
        "began, or the pool refused it. A later miss each, never a wrong answer.",
        "本应入池而未入的块数：队列已满（queue_capacity_blocks、queue_capacity_bytes）、池被搁置、设备正在修复、"
        "自行写出的步（asyncWrite 为 false）已无时间（reload_budget_ms）、"
        "某一步在写出开始前就需要该块，或池拒收。每块只是日后的一次未命中，绝不是错误答案。",
        labels=("reason",),
    ),
    _histogram(
        "spill_seconds",
        "seconds",
        "spill_seconds",
        "Time to store what one sequence left behind.",
        "存储一个序列所留内容的时间。",
    ),
    _counter(
        "fence_waits",
        "steps",
        "fence_waits",
        "Steps that had to wait, or are waiting, for a spill that still reads a block they overwrite.",
        "因写出仍在读取其将覆盖之块而等待过或正在等待的步数。",
    ),
    _histogram(
        "fence_wait_seconds",
        "seconds",
        "fence_seconds",
        "How long each of these waited.",
        "每次等待的时间。",
    ),
    _gauge("queue_blocks", "blocks", "queued_blocks", "Blocks that wait for the spill thread.", "等待写出线程的块数。"),
    _gauge("queue_bytes", "bytes", "queued_bytes", "Their bytes, tokens included.", "其字节数，含 token。"),
    _counter(
        "hook_errors",
        "calls",
        "hook_errors",
        "Calls of the host in which something unexpected was caught; the log has it.",
        "宿主调用中捕获到意外错误的次数；详见日志。",
    ),
    # -- the pool itself
    _gauge(
        "pool_open",
        "",
        "pool_is_open",
        "1 while there is a pool; 0 while the service runs without it (on_pool_unavailable).",
        "有池时为 1；服务在无池状态下运行时为 0（on_pool_unavailable）。",
        roles=POOL,
    ),
    _gauge(
        "breaker_state",
        "",
        "breaker_state",
        "0: the pool is used; 1: the next call is a trial; 2: it is in trouble and left alone.",
        "0：正常使用；1：下一次调用为试探；2：池有故障，暂时搁置。",
        roles=POOL,
    ),
    _counter(
        "breaker_openings",
        "times",
        "breaker_openings",
        "Times the pool was in trouble and left alone for a while.",
        "池因故障而被搁置的次数。",
        roles=POOL,
    ),
    _counter(
        "refused_keys",
        "keys",
        "refused_keys",
        "Keys answered with no without asking, because the pool was left alone.",
        "因池被搁置而未询问、直接回答“没有”的键数。",
        roles=POOL,
    ),
    _histogram(
        "pool_call_seconds",
        "seconds",
        {"exists": "exists_seconds", "get": "get_seconds", "put": "put_seconds"},
        "Time of one call of the pool, by what was called.",
        "一次池调用的时间，按调用种类。",
        labels=("call",),
        roles=POOL,
    ),
    _counter(
        "pool_failures",
        "calls",
        "pool_failures",
        "Calls of the pool that failed as a whole: it raised, answered another number of keys, said that its service "
        "or transport failed, or answered too late.",
        "整体失败的池调用次数：抛出异常、回答的键数不符、报告服务或传输失败，或回答过迟。",
        labels=("call", "kind"),
        roles=POOL,
    ),
    _counter(
        "pool_errors",
        "keys",
        "pool_errors",
        "Keys the pool's library answered with a code other than success, by code; misses of exists are no errors.",
        "池的库以非成功码答复的键数，按代码分类；exists 的未命中不算错误。",
        labels=("call", "code"),
        roles=POOL,
    ),
    # -- a process that owns memory of the pool
    _gauge(
        "store_memory_bytes",
        "bytes",
        "store_memory_bytes",
        "Memory that a store gives to the pool.",
        "store 给池的内存。",
        roles=STORE,
    ),
    _gauge(
        "store_used_bytes",
        "bytes",
        "store_used_bytes",
        "Of this, taken by blocks, as the master said last; 0 where its admin HTTP cannot be asked from the store.",
        "其中被块占用的部分，取自 master 最近一次的回答；store 无法访问其管理 HTTP 时为 0。",
        roles=STORE,
    ),
    _gauge(
        "store_disk_bytes",
        "bytes",
        "store_disk_bytes",
        "What its files on the SSD take.",
        "其文件在 SSD 上占用的空间。",
        roles=STORE,
    ),
    _gauge(
        "store_disk_limit_bytes",
        "bytes",
        "store_disk_limit_bytes",
        "What they may take (--ssd-size); 0 without an SSD tier.",
        "允许占用的空间（--ssd-size）；没有 SSD 层时为 0。",
        roles=STORE,
    ),
    _gauge(
        "store_master_answers",
        "",
        "store_master_answers",
        "1 while the master answers the store; 0 while the store waits for it, with its memory.",
        "master 应答 store 时为 1；store 保留内存、等待 master 时为 0。",
        roles=STORE,
    ),
    _counter(
        "store_master_losses",
        "times",
        "store_master_losses",
        "Times the master stopped answering the store.",
        "master 停止应答 store 的次数。",
        roles=STORE,
    ),
)


def metrics_of(role: ObservedRole) -> Iterator[Metric]:
    """Those a role has."""
    return (metric for metric in METRICS if role in metric.roles)


def as_json(counters: Counters, role: ObservedRole) -> dict[str, Any]:
    """Every metric of a role by name: a number, a histogram, or these by the values of its labels."""
    return {metric.name: _plain(metric, counters) for metric in metrics_of(role) if metric.source}


def _plain(metric: Metric, counters: Counters) -> Any:
    made: dict[str, Any] = {}
    for labels, value in metric.samples(counters):
        if not labels:
            return _number(value)
        place = made
        for label in labels[:-1]:
            place = place.setdefault(label, {})
        place[labels[-1]] = _number(value)
    return made


def _number(value: Value) -> Any:
    if not isinstance(value, Histogram):
        return value
    return {"count": value.count, "sum": value.total, "bounds": list(value.bounds), "counts": list(value.counts)}
