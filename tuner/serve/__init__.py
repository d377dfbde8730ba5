"""The dashboard and its HTTP API: a service that runs apart from the searches and outlives them."""
