"""What a cluster is, as far as it can be told without one."""

import pytest

from tuner.engine.cluster.joining import check_head
from tuner.errors import RequestError


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://127.0.0.1:10001", "start the search on a node: ray job submit"),
        ("127.0.0.1:1", "nothing answers there"),
        ("nowhere", "must be auto or host:port"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(address, message):
    with pytest.raises(RequestError, match=message):
        check_head(address)
