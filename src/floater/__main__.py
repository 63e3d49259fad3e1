"""`python -m floater` is the command `floater`, as torchrun -m needs it."""

import sys

from floater.cli import main

sys.exit(main())
