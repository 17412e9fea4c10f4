"""Stands in for a single-user server: tells who signed in, by the hub's own OAuth, below its prefix."""

import os
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated
from jupyterhub.utils import url_path_join
from tornado import ioloop, web


class WhoHandler(HubOAuthenticated, web.RequestHandler):
    @web.authenticated
    def get(self):
        self.finish({"user": self.get_current_user()["name"]})


# The hub's own default keeps a yes for five minutes.
HubOAuth.instance(cache_max_age=1)
prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
app = web.Application(
    [
        (url_path_join(prefix, "oauth_callback"), HubOAuthCallbackHandler),
        (url_path_join(prefix, ".*"), WhoHandler),
    ],
    cookie_secret=os.urandom(32),
)
app.listen(url.port, url.hostname)
ioloop.IOLoop.current().start()
