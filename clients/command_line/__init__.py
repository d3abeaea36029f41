"""The command line: `torsor` and its verbs."""
