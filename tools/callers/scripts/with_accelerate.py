from accelerate import Accelerator
from training_step import Model, data_of, say

accelerator = Accelerator(cpu=True)
rank, size = accelerator.process_index, accelerator.num_processes
model = accelerator.prepare(Model())
accelerator.backward(model(data_of(rank)))
say(rank, size, accelerator.unwrap_model(model).weight.grad * size)
accelerator.end_training()
