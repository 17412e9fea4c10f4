"""Sign-in to the hub: the authenticator, its pages, where a try comes from, and how sessions end.

Only local accounts are here so far. Providers of identity and second factors join at two places:
`LabAuthenticator.authenticate`, which turns a form into an account, and `LabAuthenticator.routes`, which adds
handlers.
"""
