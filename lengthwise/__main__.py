"""`python -m lengthwise`: the same as the command `lengthwise`."""

import sys

# the folder one stands in must not come before our own packages
if sys.path and sys.path[0] in ("", __import__("os").getcwd()):
    sys.path.append(sys.path.pop(0))

from lengthwise.cli import main

if __name__ == "__main__":
    main()
