"""A folder of images for the tests of the spaces that ship."""

import pytest
from pictures import add


@pytest.fixture
def tree(tmp_path):
    """Two images of each of two classes in each part, one of them in a subfolder of its class."""
    for split in ("train", "val", "test"):
        for label in ("cat", "dog"):
            add(tmp_path / "tree" / split / label)
            add(tmp_path / "tree" / split / label / "more", "1.PNG")
    return tmp_path / "tree"
