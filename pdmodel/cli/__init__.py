"""Commands of the program ``pdmodel``."""

import gc

# Imports and a plan make many objects and hardly any cycles: looking for those less often saves a tenth of a second.
gc.set_threshold(100_000, 50, 50)
