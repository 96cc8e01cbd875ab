"""`python -m loadgen.cli`."""

from loadgen.cli import main

main()
