"""A metric whose name contradicts the mode is warned of before the first trial."""

import pytest

from tuner.spec.metrics import wrong_mode


@pytest.mark.parametrize("usual", ["max", "min", ""])
def test_only_whole_words_count(usual):
    names = {
        "max": [
            "accuracy",
            "val_accuracy",
            "top1_accuracy",
            "valAccuracy",
            "eval/f1",
            "AUC",
            "episode_reward_mean",
            "r2",
        ],
        "min": ["test_loss", "error", "val-perplexity", "val_rmse"],
        "": ["neg_log_loss", "lossless", "loss_of_accuracy", "score"],
    }
    for name in names[usual]:
        warned = {mode: wrong_mode(name, mode) for mode in ("min", "max")}
        assert {mode for mode, text in warned.items() if text} == ({"min", "max"} - {usual} if usual else set()), name
        assert all(f"give --mode {usual}" in text for text in warned.values() if text)
