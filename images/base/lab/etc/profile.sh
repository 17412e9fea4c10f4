# Login shells. Debian's /etc/profile has just replaced PATH, and SSH sessions start with nothing.
if [ -n "${BASH_ENV:-}" ] && [ -r "$BASH_ENV" ]; then
  . "$BASH_ENV"
else
  PATH=${GPULAB_PATH:-/opt/lab/bin:$PATH}
fi
