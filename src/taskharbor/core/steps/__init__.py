"""The rulebook: what each verb of a store means, as pure steps over a draft.

A step is a generator. It yields what it needs to see (`needs.Need`), changes the `draft.Draft` and returns the answer
of the verb. A driver runs a step: it answers each need into the draft, then writes the draft's changes in one commit.
What was answered must still hold at that commit, by locks or by comparing revisions; otherwise the driver starts the
step again with a new draft.

The memory driver does not use these steps: it is the model that they are compared with. A driver that does needs no
rules of its own. Damaged data does not stop a step: it reads no payload, result or failure, and skips an edge whose
other end is missing.

Drivers import it. It imports other modules of the core and the errors.
"""
