"""The method for policies and episodes of one's own."""
