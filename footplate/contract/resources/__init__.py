"""The resources of the API, each defined once.

They are the response models of the service's routes, the source of openapi.json, and the types that the SDK returns.
Their order of fields is the order in the JSON.
"""
