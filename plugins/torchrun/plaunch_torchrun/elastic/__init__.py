"""The names of `torch.distributed.elastic`, a module for each of its packages."""
