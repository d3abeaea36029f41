"""Texts and other data: found, unpacked, read and split."""
