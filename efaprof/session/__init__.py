"""Recording: launch the user's program, drain its rings, write the run directory."""
