"""How it is told: claims held against published numbers, figures and tables."""
