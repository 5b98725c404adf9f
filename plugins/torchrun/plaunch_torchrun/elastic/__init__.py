"""What `torch.distributed.elastic` offers to programs, a module for each of its rooms."""
