"""The dashboard and its HTTP API: a service that runs apart from the searches and outlives them.

`app` creates the service. Each of these parts imports only those after it: `analysis` computes responses that take
long, `control` has the routes that change something, `jobs` runs searches, `reading` reads experiments, `access` admits
clients and limits them, and `answers` writes responses.
"""
