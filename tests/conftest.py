"""Property tests look for the same inputs on every machine, and a slow machine is not a failure."""

from hypothesis import settings

settings.register_profile("codesign", deadline=None, derandomize=True)
settings.load_profile("codesign")
