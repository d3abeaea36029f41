"""Reports of runs: pages, plots and event files."""
