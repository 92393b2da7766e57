"""The resources of the API, each defined once.

These models are the response models of the service's routes, the source of openapi.json, and the types that the SDK
returns. Their fields have the same order as in the JSON.
"""
