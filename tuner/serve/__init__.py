"""The dashboard and its API, as a service of its own."""
