"""What all tests of the training rooms share."""

import pytest


@pytest.fixture(autouse=True)
def in_one_thread(one_thread):
    """All these tests train in one thread."""
