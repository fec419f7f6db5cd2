"""``python -m seeupo_gym``: the same as the command ``seeupo-gym``."""

import sys

from seeupo_gym.cli import main

if __name__ == "__main__":
    sys.exit(main())
