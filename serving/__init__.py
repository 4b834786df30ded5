"""The loop: request state, queues, KV blocks, steps, the clock-free core, and the record."""
