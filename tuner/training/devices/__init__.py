"""The devices of a trial: its GPUs, number formats, compiled networks, and measured use of CPU, GPU and memory."""
