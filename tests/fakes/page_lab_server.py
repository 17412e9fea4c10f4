"""Stands in for a single-user server: answers everything below its prefix with one line."""

import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

URL = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])


class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>server</title><p>the server " + URL.path.encode())

    def log_message(self, *arguments):
        pass


HTTPServer((URL.hostname, URL.port), Server).serve_forever()
