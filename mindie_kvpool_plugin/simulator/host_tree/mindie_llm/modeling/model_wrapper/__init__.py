"""Makes the object that stands for the loaded model."""

from mindie_llm.modeling.backend_type import BackendType


class DeviceModelWrapper:
    """The loaded model of one rank: here the simulated device that came with the configuration."""

    def __init__(self, *, model_id, simulated_device, mempool_type, **options):
        self.model_id = model_id
        self.model_name = options.get("model_name")
        self.mempool_type = mempool_type
        self.model_runner = simulated_device
        self.mapping = simulated_device.mapping
        self.model_info = simulated_device.model_info
        self.config = simulated_device.model_config
        self.device = self.model_info.device
        self.rank = self.mapping.rank
        self.dp_size = self.mapping.attn_dp.group_size
        self.sp_size = self.mapping.attn_inner_sp.group_size
        self.cp_size = self.mapping.attn_cp.group_size

    def forward(self, model_inputs, npu_cache, **kwargs):
        return self.model_runner.forward(model_inputs, npu_cache, **kwargs)


def get_model_wrapper(model_config, backend_type):
    if backend_type not in BackendType.__members__.values():
        raise NotImplementedError(f"{backend_type} is no backend; there are {[b.value for b in BackendType]}")
    return DeviceModelWrapper(**model_config)
