"""Building and checking the images of the lab's servers.

The recipes (a Dockerfile, its README and its locked requirements for each image) lie in `images/` of a
checkout, and in this package of an installed wheel.
"""
