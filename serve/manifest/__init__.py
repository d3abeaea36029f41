"""The manifest of a bundle: its page, and how it is read and checked."""
