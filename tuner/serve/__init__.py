"""The dashboard and its HTTP API: a service that runs apart from the searches and outlives them.

`app` creates the service. No module of this list imports one that stands before it: `actions` has the routes
that change something, `comparison` and `analysis` have the routes that compute, `served` knows all experiments, `jobs`
runs searches, `reading` reads experiments, `access` admits and limits clients, and `answers` writes responses.
"""
