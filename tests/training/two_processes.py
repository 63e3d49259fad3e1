"""Train the toy in each process of torchrun, and resume it half way through."""

import sys
from pathlib import Path

from .toy import trainer

if __name__ == "__main__":
    run = Path(sys.argv[1])
    settings = {"dropout": 0.0, "gradient_accumulation_steps": 1}
