"""Ranks whose transport stack lets them go by words or by a buffer: part of the reference implementation.

- A rank that enters a round announces what it waits for (`ready`), by sender; then it sends, or asks for what has to be
  asked for (`request`), in the order of the round; then it answers words that came before it did, in their order, but
  those that a receiver is ready in the order of the round; then it does the software of messages that came before it
  did. In an all-gather a stack may have it announce what it waits for after it has answered.
- What a rank does for messages takes place one after another, beside its `compute`: `before` and `before_byte` for a
  message that it sends, `after` and `after_byte` for one that has arrived, and `before` for a word of its own; by
  turns, twice that in every second round of a call. That a message has arrived is told by the system at once. The word
  that a receiver is ready is heard `after` it has come, beside all else. A rank leaves no round before it has done what
  it had to.
- Messages above `eager_limit` wait for words. Others are taken: a rank goes on at once, but for a message that takes
  what its connection has on its way, in payload, above `buffer`; that holds the round until it has arrived.
"""

import collections
import itertools

from reference_network import ReferenceRun
from reference_stack import framed


class StackRun(ReferenceRun):
    """Ranks on their way through schedules by the rules of `network.stack`.

    `shake` makes words longer, relative, and as many seconds later, in their order: it tells answers that hang on which
    of several words comes first at one instant.
    """

    def __init__(self, network, *args, shake=None, **options):
        super().__init__(network, *args, **options)
        self.stack, number = network.stack, network.number
        self.word = framed(self.stack, self.stack.word, number)
        self.before, self.after, self.before_byte, self.after_byte = (
            number(getattr(self.stack, name)) for name in ("before", "after", "before_byte", "after_byte")
        )
        self.heard, self.early = collections.defaultdict(list), collections.defaultdict(int)
        self.taken, self.held = collections.defaultdict(dict), set()
        self.shake = shake or itertools.repeat(0.0)

    def enter(self, rank):
        index = self.at[rank]
        self.entered[rank] = True
        if not self.sends_first[index]:
            self.announce(rank, index)
        for number in self.sent_by(rank, index):
            if self.failed[self.ends(number)[1]]:
                self.unsent[index][rank] += 1
            elif not self.waits(number):
                self.send(number)
            else:
                self.unsent[index][rank] += 1
                if self.stack.send_completion == "acknowledged":
                    self.send(number)
                elif self.stack.send_completion == "request":
                    self.speak("request", number)
        heard = self.heard.pop((rank, index), [])
        for what, number in sorted(heard, key=lambda word: word[1]) if self.stack.send_completion == "ready" else heard:
            self.answer(what, number)
        if self.sends_first[index]:
            self.announce(rank, index)
        self.occupy(rank, self.early.pop((rank, index), 0))
        self.leave_if_done(rank)

    def announce(self, rank, index):
        if self.stack.send_completion == "ready":
            numbers = range(self.first[index], self.first[index + 1])
            for number in sorted(numbers, key=lambda number: self.ends(number)[0]):
                if self.ends(number)[1] == rank and self.waits(number):
                    self.speak("ready", number)

    def has_entered(self, rank, index):
        return self.at[rank] > index or (self.at[rank] == index and self.entered[rank])

    def payload(self, number):
        index = self.ends(number)[2]
        return self.network.number(self.rounds[index].nbytes[number - self.first[index]])

    def waits(self, number):
        return self.stack.send_completion != "taken" and self.payload(number) > self.stack.eager_limit

    def occupy(self, rank, seconds):
        """Have a rank work after what it has to do already; return when it is done with all that."""
        now = self.network.now
        if seconds > 0:
            begin = max(self.let_go[rank], now)
            self.let_go[rank] = begin + seconds
            self.occupied.append((rank, begin, self.let_go[rank]))
        return max(self.let_go[rank], now)

    def software(self, number):
        """Return what a message takes at its sender, and at its receiver."""
        payload = self.payload(number)
        return self.before + self.before_byte * payload, self.after + self.after_byte * payload

    def hand_over_at(self, t, message):
        def hand_over():
            if not message.vanished:
                self.network.hand_over(message)

        self.network.at(t, hand_over)

    def send(self, number):
        src, dst, index = self.ends(number)
        message = self.address(number)
        if not self.waits(number):
            taken = self.taken[src, dst]
            taken[number] = self.payload(number)
            if sum(taken.values()) > self.stack.buffer:
                self.held.add(number)
                self.unsent[index][src] += 1
        self.hand_over_at(self.occupy(src, self.software(number)[0]), message)

    def speak(self, what, number):
        """Send a word about a message, to its sender or, to ask for it, to its receiver."""
        src, dst, index = self.ends(number)
        speaker, listener = (src, dst) if what == "request" else (dst, src)
        by = self.network.number(next(self.shake))
        word = self.network.address(
            self.hosts[speaker], self.hosts[listener], self.word * (1 + by), max(by, 0), 0,
            lambda t: self.take_word(what, number, listener), word=(self, src, dst, what == "request"),
        )  # fmt: skip
        self.in_flight[what, number] = src, dst, word
        turns = 2 if self.stack.by_turns and (index - max(at for at in self.begins if at <= index)) % 2 else 1
        self.hand_over_at(self.network.now if what == "arrived" else self.occupy(speaker, self.before * turns), word)

    def take_word(self, what, number, rank):
        if what == "ready" and self.after > 0:
            self.network.at(self.network.now + self.after, lambda: self.hear(what, number, rank))
        else:
            self.hear(what, number, rank)

    def hear(self, what, number, rank):
        index = self.ends(number)[2]
        # A word that nobody has noticed yet vanishes with either of its ranks.
        if self.in_flight.pop((what, number), None) is None or self.failed[rank]:
            return
        if self.has_entered(rank, index):
            self.answer(what, number)
            self.leave_if_done(rank)
        else:
            self.heard[rank, index].append((what, number))

    def answer(self, what, number):
        src, _, index = self.ends(number)
        if what == "request":
            self.speak("answer", number)
            return
        if what != "arrived":
            self.send(number)
        self.unsent[index][src] -= 1

    def deliver(self, t, number):
        src, dst, index = self.ends(number)
        if not self.waits(number):
            del self.taken[src, dst][number]
        elif self.stack.send_completion == "acknowledged":
            self.speak("arrived", number)
        if number in self.held:
            self.unsent[index][src] -= 1
            self.leave_if_done(src)
        software = self.software(number)[1]
        if self.has_entered(dst, index):
            self.occupy(dst, software)
        else:
            self.early[dst, index] += software
        super().deliver(t, number)
