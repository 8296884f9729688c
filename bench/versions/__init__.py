"""The same small scripts on every PyTorch and Python that gpumem promises to carry."""
