"""The work on the outbox of a pool: claim rows, run handlers, write what became of them."""
