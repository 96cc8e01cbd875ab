"""What makes a node ill: one fault a file, each with `inject` and an idempotent `heal` (ports.ActiveFault)."""
