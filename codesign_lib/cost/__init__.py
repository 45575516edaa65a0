"""What it costs: FLOPs, bytes, and the seconds they take at least."""
