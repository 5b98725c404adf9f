"""The names of `torch.distributed.elastic`, with a module for each of its packages."""
