"""The names and times that the job's definition, its owner and the commands must agree on."""

LABEL = "io.github.omlxd.omlxd"
UNIT = "omlxd.service"
HOMEBREW_LABEL = "homebrew.mxcl.omlxd"

EXIT_TIMEOUT = 30.0
"""Seconds from SIGTERM to SIGKILL, as the job's definition says (ExitTimeOut)."""

LOG = "omlxd.log"
STDOUT = "launchd-stdout.log"
STDERR = "launchd-stderr.log"
