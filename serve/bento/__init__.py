"""BentoML: what it, circus and uvicorn make necessary."""
