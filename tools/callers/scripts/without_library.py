import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from training_step import Model, data_of, say

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = Model()
wrapped = DistributedDataParallel(model)
wrapped(data_of(rank)).backward()
say(rank, size, model.weight.grad * size)
dist.destroy_process_group()
