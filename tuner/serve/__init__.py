"""The dashboard and its HTTP API: a service that runs apart from the searches and outlives them.

`app` creates the service. Each of these parts imports only those after it: `actions` has the routes that change
something, `comparison` and `analysis` those that compute, `served` knows all experiments, `jobs` runs searches,
`reading` reads experiments, `access` admits and limits clients, and `answers` writes responses.
"""
