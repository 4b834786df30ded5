"""`python -m lengthwise`: the same as the command `lengthwise`."""

import os
import sys

# the folder one stands in must not come before our own packages, unless it is theirs
if sys.path[0] in ("", os.getcwd()) and os.path.dirname(__file__) != os.path.abspath("lengthwise"):
    sys.path.append(sys.path.pop(0))

from lengthwise.cli import main

if __name__ == "__main__":
    main()
