"""The probe of copies between device and host memory, byte by byte, on each device, in every layout there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.doctor.acceptance.trial import Trial, per_device
from mindie_kvpool_plugin.doctor.child import Told, run_child
from mindie_kvpool_plugin.doctor.lines import Line, good, note, trouble
from mindie_kvpool_plugin.doctor.software import version_of

CHILD = "mindie_kvpool_plugin.doctor.acceptance.device_child"
COPIES_TIMEOUT_S = 180.0  # importing torch_npu takes 5 to 20 s, and eight children do it at once
MIB = 1024**2
LAYOUTS = ("model", "nd", "nz", "mla", "int8", "odd")


def copies(case: Trial) -> Iterator[Line]:
    """One child per device."""
    if not version_of("torch_npu"):
        yield Line("copies.no_torch_npu", "skipped")
        return
    if not case.devices:
        yield Line("copies.no_devices", "skipped")
        return
    question = case.cache_question()
    if not question.pop("is_known"):
        yield note("copies.assumed")
    limit_s = case.left_s(COPIES_TIMEOUT_S)

    def run(device: int) -> Told:
        return run_child(CHILD, {"work": "copies", "device": device, **question}, limit_s, case.env)

    for device, told in per_device(case.devices, run):
        unloaded = told.step("unloaded")
        if unloaded is not None:  # as on every other device
            yield trouble("copies.unloaded", error=unloaded["error"])
            return
        yield from _judged(case, device, told)


def _judged(case: Trial, device: int, told: Told) -> Iterator[Line]:
    layouts = [step for step in told.steps if step["step"] == "layout"]
    wrong = [each for each in layouts if each["wrong"]]
    for each in wrong:
        blocks = ", ".join(map(str, each["wrong"]))
        yield trouble("copies.damaged", device=device, layout=each["name"], blocks=blocks)
    refused = told.step("refused")
    if refused is not None:
        yield trouble("copies.refused", device=device, error=refused["error"])
    elif told.ending == "killed":
        yield trouble("copies.hangs", device=device, done=len(layouts), layouts=len(LAYOUTS))
    elif told.ending:
        yield trouble("copies.died", device=device, ending=told.ending, done=len(layouts), layouts=len(LAYOUTS))
    elif not wrong:
        yield _verified(device, layouts, told.step("device") or {})
    speeds = told.step("speeds")
    if speeds is not None:
        yield _speeds(case, device, speeds)


def _verified(device: int, layouts: list[dict[str, Any]], found: dict[str, Any]) -> Line:
    names = ", ".join(f"{each['name']} {each['bytes']} B x {each['segments']}" for each in layouts)
    return good("copies.verified", device=device, layouts=names, free=found.get("free", 0) // MIB)


def _speeds(case: Trial, device: int, speeds: dict[str, Any]) -> Line:
    figures = {name: speeds[name] for name in ("out", "into", "memcpy")}
    case.speeds.setdefault(device, {}).update(figures)
    ratio = min(figures["out"], figures["into"]) / figures["memcpy"]
    return good("copies.speed", device=device, ratio=f"{ratio:.2f}", **mbs(figures))


def mbs(figures: dict[str, float]) -> dict[str, str]:
    """Bytes per second as MB/s."""
    return {name: f"{value / 1e6:,.0f}" for name, value in figures.items()}
