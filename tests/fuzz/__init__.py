"""Random programs on simulated ranks, what must hold of each, and the search for one that fails."""

import sys
from pathlib import Path

# Replays of other tests are in `support`, beside this package.
if (TESTS := str(Path(__file__).resolve().parents[1])) not in sys.path:
    sys.path.append(TESTS)
