"""The training of `small_images` as a space: the function of Ray Tune, unchanged."""

from benchmarks.peers.small_images import MAX_EPOCHS, PARAMS, train
from tuner.space import Space

space = Space(params=PARAMS, train=train, metric="loss", mode="min", max_epochs=MAX_EPOCHS)
