"""Tasks, one a file: what a model is trained on and how it is scored."""
