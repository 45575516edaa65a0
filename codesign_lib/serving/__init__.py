"""How a model is served: who holds what, and what a step takes."""
