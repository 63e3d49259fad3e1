"""`python -m floater` is the command `floater`, as torchrun -m needs it."""

import sys

from floater.lab.cli import main

sys.exit(main())
