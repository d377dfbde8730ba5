"""The devices of a trial: accelerators, number formats, kernels and their use."""
