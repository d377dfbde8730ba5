"""What replaces parts of a framework's Trainer in a trial looks like the Trainer's own."""

import inspect
from collections import UserList

from tuner.integrations.current_trial import automatic


class Trainer:
    def __init__(self, max_epochs: int = 3, callbacks: list | None = None) -> None:
        self.callbacks = callbacks

    def fit(self, model: object, ckpt_path: str | None = None) -> str | None:
        return ckpt_path


class Callback:
    @staticmethod
    def checkpoint() -> str:
        return "saved"


def test_a_trainer_keeps_its_signatures_gets_the_callback_and_resumes():
    """LightningCLI makes its command-line options from the signature."""
    before = inspect.signature(Trainer), inspect.signature(Trainer.fit)
    with automatic(Trainer, "fit", "ckpt_path", Callback, "file"):
        assert (inspect.signature(Trainer), inspect.signature(Trainer.fit)) == before
        trainer = Trainer(callbacks=["own"])
        assert len(trainer.callbacks) == 2 and trainer.callbacks[0] == "own"
        assert Trainer(callbacks=UserList(["own"])).callbacks[0] == "own"  # as hydra's ListConfig, no list
        assert trainer.fit("model") == "saved"
    assert Trainer().callbacks is None and Trainer().fit("model") is None
