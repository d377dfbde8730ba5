"""A metric whose name contradicts the mode is warned of before the first trial."""

import pytest

from tuner.spec.metrics import wrong_mode


@pytest.mark.parametrize(
    ("metric", "usual"),
    [
        ("accuracy", "max"),
        ("val_accuracy", "max"),
        ("top1_accuracy", "max"),
        ("valAccuracy", "max"),
        ("eval/f1", "max"),
        ("AUC", "max"),
        ("test_loss", "min"),
        ("error", "min"),
        ("val-perplexity", "min"),
        ("neg_log_loss", ""),
        ("lossless", ""),
        ("loss_of_accuracy", ""),
        ("score", ""),
    ],
)
def test_only_whole_words_count(metric, usual):
    other = {"max": "min", "min": "max"}
    told = {mode for mode in other if wrong_mode(metric, mode)}
    assert told == ({other[usual]} if usual else set())
    if usual:
        assert f"give --mode {usual}" in wrong_mode(metric, other[usual])
