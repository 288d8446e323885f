"""ScheduleConfig and lengths: values that must fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import B, C, D, View, coerced, integer, text

SHIPPED_BACKEND = "mindieservice_llm_engine"
DEFAULT_PARTIAL_PREFILLS = 64
DEFAULT_LONG_PREFILLS = 8
DEFAULT_CHUNK_TOKENS = 512


@rule(
    "HC-10", "warning", "silent",
    "prefix: 参数说明",
    wrong='"enablePrefixCache": true',
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache\\"}"',
    fix="remove",
)  # fmt: skip
def old_switch_is_gone(view: View) -> Iterator[Fault]:
    """The old switch is read and ignored; whoever sets it believes prefix cache is on."""
    if "enablePrefixCache" in view.schedule:
        misled = view.schedule["enablePrefixCache"] is True and not view.is_prefix
        yield fault(B, C, "enablePrefixCache", variant="misled" if misled else "", severity="error" if misled else None)


@rule(
    "HC-61", "error", "boot",
    "service: ScheduleConfig参数说明; code: src/config_manager/schedule_config.cpp",
    wrong='"maxPrefillTokens": 2048, "maxInputTokenLen": 4096',
    right='"maxPrefillTokens": 4096, "maxInputTokenLen": 4096',
)  # fmt: skip
def prefill_batch_holds_the_longest_prompt(view: View) -> Iterator[Fault]:
    """Except with templateType Mix."""
    tokens, longest = integer(view.schedule, "maxPrefillTokens"), integer(view.deploy, "maxInputTokenLen")
    if tokens is not None and longest is not None and tokens < longest and view.schedule.get("templateType") != "Mix":
        yield fault(B, C, "maxPrefillTokens", tokens=tokens, longest=longest)


@rule(
    "HC-62", "error", "boot",
    "service: ScheduleConfig参数说明; code: src/config_manager/schedule_config.cpp",
    wrong='"maxPreemptCount": 1, "cpuMemSize": 0',
    right='"maxPreemptCount": 1, "cpuMemSize": 5',
)  # fmt: skip
def batch_sizes_fit(view: View) -> Iterator[Fault]:
    """Five pairs that the host compares."""
    preempt, batch = integer(view.schedule, "maxPreemptCount"), integer(view.schedule, "maxBatchSize")
    if preempt is not None and preempt > 0 and any(integer(model, "cpuMemSize") == 0 for model in view.models):
        yield fault(B, C, "maxPreemptCount", variant="cpu", preempt=preempt)
    for key in ("maxPreemptCount", "maxPrefillBatchSize", "maxN"):
        size = integer(view.schedule, key)
        if size is not None and batch is not None and size > batch:
            yield fault(B, C, key, key=key, size=size, batch=batch)
    partial = coerced(view.schedule, "maxNumPartialPrefills", DEFAULT_PARTIAL_PREFILLS)
    long = coerced(view.schedule, "maxLongPartialPrefills", DEFAULT_LONG_PREFILLS)
    if partial is not None and long is not None and long > partial:
        key = "maxLongPartialPrefills" if "maxLongPartialPrefills" in view.schedule else "maxNumPartialPrefills"
        yield fault(B, C, key, variant="partial", long=long, partial=partial)


@rule(
    "HC-63", "warning", "advice",
    "service: ModelDeployConfig参数说明",
    wrong='"maxInputTokenLen": 4096, "maxSeqLen": 4096',
    right='"maxInputTokenLen": 2048, "maxSeqLen": 4096',
)  # fmt: skip
def prompts_leave_room_for_answers(view: View) -> Iterator[Fault]:
    """The effective limit is maxSeqLen - 1."""
    longest, total = integer(view.deploy, "maxInputTokenLen"), integer(view.deploy, "maxSeqLen")
    if longest is not None and total is not None and longest >= total:
        yield fault(B, D, "maxInputTokenLen", longest=longest, total=total)


@rule(
    "HC-64", "warning", "advice",
    "service: ScheduleConfig参数说明",
    wrong='"maxIterTimes": 4096, "maxSeqLen": 2560',
    right='"maxIterTimes": 512, "maxSeqLen": 2560',
)  # fmt: skip
def answers_fit_the_sequence(view: View) -> Iterator[Fault]:
    """An output limit above the sequence limit is never reached."""
    answer, total = integer(view.schedule, "maxIterTimes"), integer(view.deploy, "maxSeqLen")
    if answer is not None and total is not None and answer > total:
        yield fault(B, C, "maxIterTimes", answer=answer, total=total)


@rule(
    "HC-65", "error", "boot",
    "splitfuse: 参数说明",
    wrong='"templateType": "Standard" with splitfuse',
    right='"templateType": "Mix" with splitfuse',
)  # fmt: skip
def splitfuse_needs_mix(view: View) -> Iterator[Fault]:
    """And a chunk length above 0; Mix alone mixes nothing."""
    kind = view.schedule.get("templateType")
    # a word that the scheduler overlooks still reaches the worker, so the rule holds for it too
    has_word = any(word.strip() == "splitfuse" for word in view.words)
    if has_word and kind == "Standard":
        yield fault(B, C, "templateType")
    if has_word and integer(view.schedule, "splitChunkTokens", DEFAULT_CHUNK_TOKENS) == 0:
        yield fault(B, C, "splitChunkTokens", variant="chunk")
    if kind == "Mix" and not has_word:
        yield fault(B, C, "templateType", variant="alone", severity="warning", outcome="advice")


@rule(
    "HC-68", "error", "boot",
    "service: ModelDeployConfig参数说明; code: src/config_manager/model_deploy_config.cpp",
    wrong='"templateType": "Standard", "ModelConfig": [{...}, {...}]',
    right='"ModelConfig": [{...}]',
)  # fmt: skip
def standard_serves_one_model(view: View) -> Iterator[Fault]:
    """Exactly one entry."""
    entries = view.deploy.get("ModelConfig")
    if view.schedule.get("templateType") == "Standard" and isinstance(entries, list) and len(entries) > 1:
        yield fault(B, D, "ModelConfig", count=len(entries))


@rule(
    "CF-11", "warning", "advice",
    "service: BackendConfig参数说明; service: ModelConfig参数说明; service: ScheduleConfig参数说明",
    wrong='"prefillPolicyType": 3',
    right='"prefillPolicyType": 0',
)  # fmt: skip
def values_are_the_documented_ones(view: View) -> Iterator[Fault]:
    """Values the host takes and the manual does not list."""
    for key in ("prefillPolicyType", "decodePolicyType"):
        if integer(view.schedule, key) in {1, 2, 3}:
            yield fault(B, C, key, documented="0")
    name = view.backend.get("backendName")
    if isinstance(name, str) and name != SHIPPED_BACKEND:
        yield fault(B, "backendName", documented=SHIPPED_BACKEND)
    for index, model in enumerate(view.models):
        if model.get("backendType") == "ms":
            yield fault(*view.model_path(index, "backendType"), documented="atb, torch")
        if text(model, "modelInstanceType") in {"TargetModel", "AssistantModel"}:
            yield fault(*view.model_path(index, "modelInstanceType"), documented="Standard, StandardMock")
    block = integer(view.schedule, "cacheBlockSize")
    if block is not None and 0 < block < 128 and block % 16:
        yield fault(B, C, "cacheBlockSize", documented="16, 32, ... 128")
    chunk, most = integer(view.schedule, "prefillChunkSize"), integer(view.schedule, "maxPrefillTokens")
    if chunk is not None and (chunk < 1 or (most is not None and chunk > most)):
        yield fault(B, C, "prefillChunkSize", documented=f"1..{most or ''}")
