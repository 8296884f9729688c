"""gpumem beside what its users would do instead."""
