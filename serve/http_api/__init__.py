"""The HTTP door: routes, bodies, responses and server-sent events."""
