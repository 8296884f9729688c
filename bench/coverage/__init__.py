"""What share of training scripts gpumem can read: real scripts, each with the estimate it got."""
