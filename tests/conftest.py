"""What every test shares: hypothesis without time limits, as two cores stall now and then."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
