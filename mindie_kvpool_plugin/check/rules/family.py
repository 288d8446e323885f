"""Which family a model belongs to, from its weights if they are here, else from its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mindie_kvpool_plugin.check.rules.view import View, text

Name = Literal["deepseek", "deepseek_v32", "qwen", "qwen_moe", "other", "unknown"]

_BY_TYPE: dict[str, Name] = {
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "deepseekv2": "deepseek",
    "deepseekv3": "deepseek",
    "deepseek_v32": "deepseek_v32",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen2_moe": "qwen_moe",
    "qwen3_moe": "qwen_moe",
    "qwen_moe": "qwen_moe",
}


@dataclass(frozen=True, slots=True)
class Family:
    """A model's family.

    Attributes:
        name: the family.
        is_guess: taken from the model's name; then rules warn instead of refusing.
        config: the weights' config.json; {} when unknown.
    """

    name: Name
    is_guess: bool
    config: dict[str, Any]

    @property
    def is_deepseek(self) -> bool:
        """DeepSeek V3, V3.1, R1 and their relatives without V3.2."""
        return self.name == "deepseek"

    @property
    def is_qwen(self) -> bool:
        """Qwen, dense or not."""
        return self.name in {"qwen", "qwen_moe"}


def family(view: View, index: int) -> Family:
    """The family of a ModelConfig entry."""
    weights = view.followed.weights.get(index)
    config = weights.value if weights is not None and isinstance(weights.value, dict) else {}
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type:
        return Family(_BY_TYPE.get(model_type, "other"), False, config)
    model = view.models[index]
    words = f"{text(model, 'modelName')} {text(model, 'modelWeightPath')}".lower()
    return Family(_guess(words), True, config)


def _guess(words: str) -> Name:
    if "distill" in words:
        return "qwen" if "qwen" in words else "unknown"
    if "deepseek" in words and ("v3.2" in words or "v32" in words):
        return "deepseek_v32"
    if "deepseek" in words and any(name in words for name in ("r1", "v3")):
        return "deepseek"
    if any(name in words for name in ("qwen2", "qwen3", "qwen-2", "qwen-3")):
        return "unknown" if "vl" in words or "moe" in words else "qwen"
    return "unknown"
