import os

from lightning_fabric import Fabric
from training_step import Model, data_of, say

if "LT_CLI_USED" in os.environ:  # fabric run
    fabric = Fabric()
else:
    sizes = [int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")]
    fabric = Fabric(accelerator="cpu", devices=sizes[0], num_nodes=sizes[1])
    fabric.launch()
model = Model()
wrapped = fabric.setup(model)
fabric.backward(wrapped(data_of(fabric.global_rank)))
say(fabric.global_rank, fabric.world_size, model.weight.grad * fabric.world_size)
