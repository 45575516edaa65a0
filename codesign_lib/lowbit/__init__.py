"""What few bits do: block-scaled formats to the bit, and the recipes that spend the same bits better."""
