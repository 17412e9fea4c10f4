"""IPython's settings in this image, for kernels and terminals."""

import os

c = get_config()  # noqa: F821  # given by IPython

# Set by gpulab-start when the home is full or on a network file system.
databases = os.environ.get("GPULAB_DATABASES")
if databases:
    c.HistoryManager.hist_file = f"{databases}/history.sqlite"
