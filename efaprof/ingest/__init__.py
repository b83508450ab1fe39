"""Reading what other tools wrote."""
