"""Programs that make data files of the package: weights, profiles, traces and tables of what was recorded."""
