"""What is given: number formats, chips, models, and what others published."""
