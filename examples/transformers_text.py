"""A Hugging Face Trainer with a tiny BERT of random weights; random sentences, nothing is downloaded.

Three lines differ from a script of Hugging Face's own: the import of `TunerCallback`, `callbacks=[TunerCallback()]`,
and `resume_from_checkpoint=TunerCallback.checkpoint()`.
"""

import torch
from ray import tune
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from tuner.integrations.transformers import TunerCallback
from tuner.space import Space


def sentences(size, seed):
    """Rows of word numbers; the label says whether the first word is above the middle of the vocabulary."""
    words = torch.randint(64, (size, 12), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": int(row[0] >= 32)} for row in words]


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def train(config):
    set_seed(0)
    sizes = {"hidden_size": config["width"], "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=64, max_position_embeddings=16, **sizes))
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=4,
        learning_rate=config["lr"],
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        use_cpu=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=sentences(256, 0),
        eval_dataset=sentences(128, 1),
        compute_metrics=accuracy,
        callbacks=[TunerCallback()],
    )
    trainer.train(resume_from_checkpoint=TunerCallback.checkpoint())


space = Space(
    params={"width": tune.choice([16, 32]), "lr": tune.loguniform(1e-4, 1e-2)},
    train=train,
    metric="eval_loss",
    max_epochs=4,
    num_samples=4,
)
