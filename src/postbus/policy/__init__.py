"""Rules: plain values in, plain values out; nothing here waits, reads a clock or touches a store."""
