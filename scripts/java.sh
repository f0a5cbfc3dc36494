#!/usr/bin/env bash
# Is there a Java for Spark? Spark 4 needs 17 or newer. As root on Debian it is installed where it is missing.
set -euo pipefail

needed=17

major_of() { # java-program → 17
    "$1" -version 2>&1 | sed -nE '1,3s/.*version "([0-9]+).*/\1/p' | head -n 1
}

new_enough() {
    [ -x "$1" ] || return 1
    local major
    major=$(major_of "$1")
    [ -n "$major" ] && [ "$major" -ge "$needed" ]
}

found() {
    if [ -n "${JAVA_HOME:-}" ]; then # Spark prefers it to the PATH, so it has to be right
        new_enough "$JAVA_HOME/bin/java"
    else
        new_enough "$(command -v java || true)"
    fi
}

install() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 1
    echo "No Java $needed or newer: installing openjdk-$needed-jre-headless"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends "openjdk-$needed-jre-headless" >/dev/null 2>&1 ||
        { apt-get update && apt-get install -y --no-install-recommends "openjdk-$needed-jre-headless"; } >/dev/null
}

found && exit 0
if [ -z "${JAVA_HOME:-}" ] && install && found; then
    exit 0
fi
echo "Spark needs Java $needed or newer; JAVA_HOME is '${JAVA_HOME:-}', java is '$(command -v java || echo missing)'." >&2
echo "Install a Java runtime (Debian: apt-get install openjdk-$needed-jre-headless) or point JAVA_HOME at one." >&2
exit 1
