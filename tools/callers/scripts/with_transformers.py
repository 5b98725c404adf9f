import torch
from training_step import Model, data_of, say
from transformers import Trainer, TrainingArguments


class Loss(Model):
    def forward(self, data):
        return {"loss": super().forward(data)}


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return arguments.world_size

    def __getitem__(self, index):
        return {"data": data_of(index)}


arguments = TrainingArguments(
    "out",
    use_cpu=True,
    max_steps=1,
    per_device_train_batch_size=1,
    learning_rate=1.0,
    lr_scheduler_type="constant",
    optim="sgd",
    max_grad_norm=0.0,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
model = Loss()
trainer = Trainer(model=model, args=arguments, train_dataset=Numbers())
trainer.train()
say(arguments.process_index, arguments.world_size, -model.weight.detach() * arguments.world_size)
trainer.accelerator.end_training()
