"""`python -m bench.snapshots FOLDER`."""

import sys

from bench.snapshots import main

sys.exit(main())
