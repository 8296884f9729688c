"""`python -m estimator` is `gpumem`."""

from estimator.cli import main

main()
