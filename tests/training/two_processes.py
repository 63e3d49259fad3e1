"""Train the toy in this process of torchrun to step 4, resume, and train to step 6."""

import sys
from pathlib import Path

from .toy import sgd, trainer

if __name__ == "__main__":
    run = Path(sys.argv[1])
    settings = {"dropout": 0.0, "optimizer": sgd, "learning_rate": 1.0, "count": 40}
    trainer(run, max_steps=4, **settings).train()
    trainer(run, max_steps=6, **settings).train(resume_from_checkpoint=True)
