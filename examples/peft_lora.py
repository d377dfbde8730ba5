"""LoRA by `peft` on a tiny language model of random weights; random texts, nothing is downloaded.

Three lines differ from a script of Hugging Face's own: the import of `TunerCallback`, `callbacks=[TunerCallback()]`,
and `resume_from_checkpoint=TunerCallback.checkpoint()`. The checkpoint has the adapter, not the frozen model.
"""

import torch
from peft import LoraConfig, get_peft_model
from ray import tune
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from tuner.integrations.transformers import TunerCallback
from tuner.space import Space


def texts(size, seed):
    """Rows that count upwards from a random number."""
    starts = torch.randint(32, (size, 1), generator=torch.Generator().manual_seed(seed))
    rows = (starts + torch.arange(12)) % 32
    return [{"input_ids": row, "labels": row} for row in rows]


def train(config):
    set_seed(0)  # the frozen weights must be the same after a resume
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, **sizes))
    lora = LoraConfig(r=config["rank"], lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "lm_head"])
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=4,
        learning_rate=config["lr"],
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        use_cpu=True,
    )
    trainer = Trainer(
        model=get_peft_model(model, lora),
        args=arguments,
        train_dataset=texts(256, 0),
        eval_dataset=texts(64, 1),
        callbacks=[TunerCallback()],
    )
    trainer.train(resume_from_checkpoint=TunerCallback.checkpoint())


space = Space(
    params={"rank": tune.choice([2, 4, 8]), "lr": tune.loguniform(1e-3, 1e-1)},
    train=train,
    metric="eval_loss",
    max_epochs=4,
    num_samples=4,
)
