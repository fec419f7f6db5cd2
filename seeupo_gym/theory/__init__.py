"""The exact tabular laboratory: claims about SeeUPO, computed without sampling wherever possible (docs/theory.md)."""
