"""Admission of requests by API key, their log, their traces, and TLS."""
