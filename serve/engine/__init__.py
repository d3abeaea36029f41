"""The engine: one loop that owns the streams, their slots and their batches."""
