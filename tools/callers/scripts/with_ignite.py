import ignite.distributed as idist
from training_step import Model, data_of, say


def train(local_rank):
    rank, size = idist.get_rank(), idist.get_world_size()
    model = Model()
    wrapped = idist.auto_model(model)
    wrapped(data_of(rank)).backward()
    say(rank, size, model.weight.grad * size)


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(train)
