"""A recipe of torchtune, which `tune run` starts; it needs a configuration file, even if empty."""

import sys

import torch.distributed as dist
from omegaconf import DictConfig
from torch.nn.parallel import DistributedDataParallel
from torchtune import config, training
from training_step import Model, data_of, say


@config.parse
def train(cfg: DictConfig) -> None:
    training.set_seed(seed=cfg.seed)
    dist.init_process_group(training.get_distributed_backend(cfg.device))
    size, rank = training.get_world_size_and_rank()
    model = Model()
    wrapped = DistributedDataParallel(model)
    wrapped(data_of(rank)).backward()
    say(rank, size, model.weight.grad * size)
    del wrapped  # while its process group exists
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(train())
