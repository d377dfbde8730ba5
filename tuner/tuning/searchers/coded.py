"""Domains as other libraries get them: a choice and a range with a step become ranges of indices."""

from __future__ import annotations

from typing import Any

from ray import tune

from tuner.spec import domains


class Coded:
    """A domain's values by codes, which lie in `domain`, of which each library proposes what Ray documents.

    Of other domains, Ray's adapters lose types (BOHB makes 1.0 of the 1 in [1, 0.5]) and steps, or propose values out
    of bounds: with HyperOpt, `tune.qrandint(1, 10, 3)` gives 0. The code of a choice is the value's index. That of a
    range of integers or with a step `q` is the value divided by the step, as in Ray's own sampler.
    """

    def __init__(self, domain: Any) -> None:
        self._own, self.domain, self._step = domain, domain, 1
        self._values = domains.values_of(domain) if domains.is_choice(domain) else []
        if self._values:
            self.domain = tune.choice(list(range(len(self._values))))
        elif domains.kind(domain) not in domains.UNBOUNDED:
            span = domains.Range(domain)
            if span.whole or span.step:
                self._step = span.step or 1
                low, high = round(span.low / self._step), round(span.high / self._step)
                self.domain = (tune.lograndint if span.log else tune.randint)(low, high + 1)
                if low == high:  # ConfigSpace has no range of one value
                    self.domain = tune.choice([low])

    def value(self, code: Any) -> Any:
        """Returns the value that a code stands for."""
        return self._values[int(code)] if self._values else domains.within(self._own, code * self._step)

    def code(self, value: Any) -> Any:
        """Returns the code of a value, or of the next value on a step."""
        if self._values:
            return domains.index_of(self._values, value)
        is_own = self.domain is self._own
        return value if is_own else round(domains.within(self._own, value) / self._step)
