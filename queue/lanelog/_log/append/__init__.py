"""How messages get into the log: drafts, their times, their lanes, their offsets, and repetitions of unknown outcome.

The caller owns the transaction. Publishers, administration, what is due and dead letters append through it. `draft` and
`timing` check a message before any SQL, `writing` gives offsets and writes, `unknown_outcome` bounds the time for
repetitions, `lanes` creates missing lanes, and `appender` is the way in for callers without a publisher.
"""
