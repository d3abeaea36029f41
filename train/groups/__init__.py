"""Matrix groups, one a file, and the exponential that they share."""
