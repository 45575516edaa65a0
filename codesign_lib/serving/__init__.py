"""How a network is served: on many GPUs, to many users."""
