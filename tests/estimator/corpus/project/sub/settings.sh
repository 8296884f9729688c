export LEVEL=2
COMMON="--common 1"
