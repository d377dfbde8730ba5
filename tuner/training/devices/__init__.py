"""The devices of a trial: accelerators, memory, number formats, kernels and their use."""
