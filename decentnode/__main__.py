"""`python -m decentnode` is the same as `decentnode`."""

from decentnode.cli import main

main()
