"""Tasks and environments seen in another way: in words, or as lists of candidates."""
