"""Jupyter Server's settings in this image. A user's own ~/.jupyter/jupyter_server_config.py comes after."""

import os
from pathlib import Path

c = get_config()  # noqa: F821  # given by Jupyter

if Path("/workspace").is_dir():
    c.ServerApp.root_dir = "/workspace"
# A shim for settings of classic Notebook, which is not in this image; it loads IPython into the server.
c.ServerApp.jpserver_extensions = {"notebook_shim": False}
# The environment belongs to the image: an extension that the user adds comes by pip, into their home.
c.LabApp.extension_manager = "readonly"
# Versions are the image's too: nobody is told to update what they cannot, and nothing is fetched.
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.news_url = None

# Set by gpulab-start when the home is full or on a network file system.
databases = os.environ.get("GPULAB_DATABASES")
if databases:
    c.NotebookNotary.db_file = f"{databases}/nbsignatures.db"
if databases and os.environ.get("GPULAB_HOME_FULL"):
    c.NotebookNotary.secret_file = f"{databases}/notebook_secret"
