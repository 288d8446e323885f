"""Which plugins there are and what their parameters must look like."""

import json
import re

PLUGIN_WHITE_LIST = ["la", "memory_decoding", "mtp", "prefix_cache"]
PLUGIN_TYPE = "plugin_type"
PLUGIN_FIELDS = "required_fields"
PLUGIN_CHECK_FUNC = "validation_func"
MAX_JSON_LENGTH = 1024


class PluginDataParam:
    def __init__(self):
        self.q_len = None
        self.mask = None
        self.mtp_model_inputs = None
        self.hidden_states = None


def _anything(data):
    return True


class PluginParameterValidator:
    def __init__(self, speculation_gamma):
        self.speculation_gamma = speculation_gamma
        gamma = speculation_gamma
        self.rules = {
            "la": _rule(
                {"level", "window", "guess_set_size"},
                lambda data: (data["level"] - 1) * (data["window"] + data["guess_set_size"]) <= gamma,
            ),
            "memory_decoding": _rule({"decoding_length"}, lambda data: data["decoding_length"] <= gamma),
            "splitfuse": _rule(set(), _anything),
            "prefix_cache": _rule(set(), _anything),
            "mtp": _rule({"num_speculative_tokens"}, lambda data: 0 <= data["num_speculative_tokens"] <= min(5, gamma)),
        }

    def validate(self, plugin_params):
        if not plugin_params:
            return {PLUGIN_TYPE: None}, False, []
        if len(plugin_params) > MAX_JSON_LENGTH:
            raise ValueError(
                f"plugin_params has {len(plugin_params)} characters, at most {MAX_JSON_LENGTH} are allowed"
            )
        config = json.loads(plugin_params)
        wanted = [name for name in re.split(r",\s*", config.get(PLUGIN_TYPE)) if name]
        for name in wanted:
            self._check(name, config)
        # the list's order is the call order; a name with a rule that is not listed is dropped without a word
        return config, "splitfuse" in wanted, [name for name in PLUGIN_WHITE_LIST if name in wanted]

    def _check(self, name, config):
        rule = self.rules.get(name)
        if rule is None:
            raise NotImplementedError(f"plugin type {name} is not known here; known are {sorted(self.rules)}")
        missing = rule[PLUGIN_FIELDS] - config.keys()
        if missing:
            raise NotImplementedError(f"plugin type {name} needs {sorted(missing)}")
        if not rule[PLUGIN_CHECK_FUNC](config):
            raise ValueError(f"plugin type {name} has parameters that cannot work")


def _rule(fields, check):
    return {PLUGIN_FIELDS: fields, PLUGIN_CHECK_FUNC: check}
