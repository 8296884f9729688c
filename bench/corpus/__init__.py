"""How many of other people's batch scripts gpumem understands."""
