"""What holds for every test: hypothesis without a deadline, since a shared machine stalls at times.

``HYPOTHESIS_PROFILE=thorough pytest ...`` runs ten times the examples of those tests that do not set a number.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
