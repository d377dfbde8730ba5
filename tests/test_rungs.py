import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tuner.rungs import Rung

REWARDS = st.floats(-1e300, 1e300) | st.integers(-(2**53), 2**53)


@given(st.lists(REWARDS, min_size=1, max_size=50), st.floats(1.001, 100))
def test_a_rungs_percentile_is_numpys_to_the_last_bit(rewards, reduction_factor):
    rung = Rung()
    for number, reward in enumerate(rewards):
        rung[str(number)] = reward
        q = (1 - 1 / reduction_factor) * 100
        with np.errstate(all="ignore"):
            assert repr(rung.percentile(q)) == repr(float(np.nanpercentile(list(rung.values()), q)))
