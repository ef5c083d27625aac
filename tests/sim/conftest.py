"""Makes the helpers of this folder importable, whatever way pytest imports the tests.

Profiles of the hypothesis tests: the default is bounded and always the same. For a long search with
new examples every time, 100 times as many:

    pytest tests/sim --hypothesis-profile=deep
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent))

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("deep", derandomize=False, deadline=None, print_blob=True)
