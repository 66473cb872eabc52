"""What a rank computes beside an exchange, event by event: part of the reference implementation.

- Slices of the backward pass run one after another. When one ends, the kernels that select its part queue.
- Kernels run in the order in which they came. On one stream a slice begins when no kernel is left, after all else that
  happens at that instant, and nothing interrupts a slice or a kernel. With a side stream kernels run beside slices, and
  both take longer by a factor while both run.
- A slice takes longer by a factor while messages of some parts are under way.
"""

import collections


class ReferenceStream:
    """The compute stream of a rank, from a time on: what `ReferenceRun` asks it for is done when it calls back."""

    def __init__(self, network, start, slices, select, side):
        self.network, self.side, self.since = network, side, start
        self.slices, self.select = list(slices), list(select)
        self.selected = [False] * len(self.slices)
        self.begun, self.left, self.kernels = 0, None, collections.deque()
        self.factor, self.version, self.callers = 1, 0, []
        network.at(start, self.begin, 2)

    @property
    def is_idle(self):
        return self.left is None and not self.kernels and self.begun == len(self.slices)

    def rates(self):
        serves = bool(self.kernels) and (self.side is not None or self.left is None)
        both = serves and self.left is not None
        return serves, self.factor * (self.side[0] if both else 1), self.side[1] if both else 1

    def bring_up(self):
        serves, slower_slice, slower_kernel = self.rates()
        passed, self.since = self.network.now - self.since, self.network.now
        if passed > 0:
            if self.left is not None:
                self.left -= passed / slower_slice
            if serves:
                self.kernels[0][0] -= passed / slower_kernel

    def plan(self):
        """Wake up when the next thing ends, and tell who waits for what has ended."""
        self.version += 1
        serves, slower_slice, slower_kernel = self.rates()
        ends = [(self.since + max(self.left, 0) * slower_slice, self.end_slice)] if self.left is not None else []
        if serves:
            ends.append((self.since + max(self.kernels[0][0], 0) * slower_kernel, self.end_kernel))
        if ends:
            (t, end), version = min(ends, key=lambda end: end[0]), self.version
            self.network.at(max(t, self.network.now), lambda: end() if version == self.version else None)
        if self.left is None and self.begun < len(self.slices) and (self.side is not None or not self.kernels):
            self.network.at(self.network.now, self.begin, 2)
        waiting, self.callers = self.callers, []
        for is_so, act in waiting:
            self.when(is_so, act)

    def begin(self):
        self.bring_up()
        if self.left is None and self.begun < len(self.slices) and (self.side is not None or not self.kernels):
            self.left, self.begun = self.slices[self.begun], self.begun + 1
            self.plan()

    def end_slice(self):
        self.bring_up()
        part, self.left = self.begun - 1, None

        def note():
            self.selected[part] = True

        self.kernels.append([self.select[part], note])
        self.drop_empty()
        self.plan()

    def end_kernel(self):
        self.bring_up()
        self.kernels[0][0] = 0
        self.drop_empty()
        self.plan()

    def drop_empty(self):
        while self.kernels and self.kernels[0][0] <= 0:
            self.kernels.popleft()[1]()

    def when(self, is_so, act):
        """Call back when something is so: at once if it is."""
        if is_so():
            act()
        else:
            self.callers.append((is_so, act))

    def queue(self, seconds, act):
        self.bring_up()
        self.kernels.append([seconds, act])
        self.plan()

    def slow(self, factor):
        self.bring_up()
        self.factor = factor
        self.plan()


def streams_of(network, start, parts, computing):
    """Return the streams of all ranks, given when they start, parts with when they would be ready, and the rest."""
    number = network.number
    ready = [list(map(number, when)) for _, when in parts]
    slices = [
        [b - a for a, b in zip(one, other, strict=True)] for one, other in zip([start, *ready], ready, strict=False)
    ]
    side = None if computing.side_stream is None else tuple(map(number, computing.side_stream))
    select = [[number(one) for one in row] for row in computing.select]
    return [
        ReferenceStream(network, start[rank], [one[rank] for one in slices], [one[rank] for one in select], side)
        for rank in range(len(start))
    ]
