# Login shells. Debian's /etc/profile has just replaced PATH, and SSH sessions start with nothing.
if [ -n "${GPULAB_SESSION:-}" ] && [ -r "$GPULAB_SESSION" ]; then
  . "$GPULAB_SESSION"
else
  PATH=${GPULAB_PATH:-/opt/lab/bin:$PATH}
fi
