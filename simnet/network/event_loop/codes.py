"""Integer codes of the event loop: kinds of events and notices, states of ranks and flows, and return values."""

from __future__ import annotations

# In place of a row: there is none. Rows are from 0 on.
NONE = -1

# Kinds of events. A rank resumes or fails. A message is injected at its host, has passed its latency, arrives, or has
# left its host. An egress queue sends its next message; a link changes; background traffic may start or stop.
RESUME, FAIL, INJECT, JOIN, DELIVER, LEFT, DEQUEUE, CHANGE, TOGGLE = range(9)
WITHDRAWN = -1

# What `advance` returns: nothing is due; there are notices; nothing can move; more room for messages in flight or early
# arrivals is needed; more weather is needed; a link failed or recovered.
WAITING, NOTICES, STUCK, GROW, EXTEND, OUTAGE = range(6)

# Notices: a run is done; it can never be; the message of a transfer has arrived.
DONE, STALLED, ARRIVED = range(3)

# States of a rank: not yet or no longer in the schedule, waiting for its gate, computing, in its round, failed.
OUTSIDE, GATED, COMPUTING, IN_ROUND, FAILED = range(5)

# States of a flow: free; a message before or after its flow; behind another one of its connection; flowing; vanished;
# arrived or vanished while its host's own link still sends it; in an egress queue; an early control message.
FREE, ON_ITS_WAY, BLOCKED, FLOWING, VANISHED, DRAINED, QUEUED, EARLY_CONTROL = range(8)

# What a flow carries: data, or a control message: the receiver is ready, a request to send, its answer, an arrival; and
# once it is there, but not yet noticed, that the receiver is ready.
DATA, IS_READY, ASKS, ANSWERS, HAS_ARRIVED, UNNOTICED = range(6)

# Software of a rank for a message: the request, a control message of the receiver, the send, and the receive.
ASKING, SPEAKING, SENDING, TAKING_IN = range(4)

# When a send completes; see `simnet.network.stack`.
LEFT_HOST, TAKEN, ACKNOWLEDGED, READY, REQUEST = range(5)

# Owner of a flow without a run; bottleneck of a flow if it is no link, or not known yet.
TRANSFER, BACKGROUND = -1, -2
NOTHING, ITSELF, UNSOLVED = -1, -2, -3
