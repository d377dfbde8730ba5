"""What all tests of the training rooms share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that outnumber the free cores make steps this small a hundred times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
