#!/bin/bash
# install.sh install|uninstall: puts what `make build` built, and the files beside this one, below $DESTDIR and $PREFIX, or takes
# exactly these away again. What it puts, and each directory that it makes for it, is listed in $PREFIX/share/avgpipe/installed.
# The configuration and the state are the administrator's: never replaced, never removed.
set -euo pipefail
: "${DESTDIR:=}" "${PREFIX:=/usr/local}" "${BIN:=bin}"
deploy=$(dirname "$0")
list=$PREFIX/share/avgpipe/installed

fail() {
	printf 'make %s: %s\n' "$action" "$1" >&2
	exit 1
}

# note LINE: adds a line to the list, once.
note() { grep -qxF -- "$1" "$DESTDIR$list" || printf '%s\n' "$1" >>"$DESTDIR$list"; }

# makedir DIR: makes a directory with those above it, and remembers which it made.
makedir() {
	[ -d "$DESTDIR$1" ] || [ "$1" = / ] || [ "$1" = . ] && return
	makedir "$(dirname "$1")"
	mkdir "$DESTDIR$1"
	made+=("$1/")
}

# put MODE FILE TO: installs a file.
put() {
	makedir "$(dirname "$3")"
	install -m "$1" "$2" "$DESTDIR$3"
	note "$3"
}

install_all() {
	for file in avgpiped avgpipectl share/man share/completions; do
		[ -e "$BIN/$file" ] || fail "there is no $BIN/$file. Build first, as the user whose Go it is and without sudo: make build"
	done
	[ -z "$DESTDIR" ] || mkdir -p "$DESTDIR"
	made=()
	makedir "$(dirname "$list")"
	touch "$DESTDIR$list"
	put 0755 "$BIN/avgpiped" "$PREFIX/bin/avgpiped"
	put 0755 "$BIN/avgpipectl" "$PREFIX/bin/avgpipectl"
	unit=$(mktemp)
	sed "s|/usr/bin/|$PREFIX/bin/|" "$deploy/avgpiped.service" >"$unit"
	put 0644 "$unit" "$PREFIX/lib/systemd/system/avgpiped.service"
	rm "$unit"
	put 0644 "$deploy/avgpiped-gpu-devices.service" "$PREFIX/lib/systemd/system/avgpiped-gpu-devices.service"
	put 0644 "$deploy/avgpiped-gpu.conf" "$PREFIX/share/avgpipe/avgpiped-gpu.conf"
	put 0644 "$deploy/avgpiped-ucx.conf" "$PREFIX/share/avgpipe/avgpiped-ucx.conf"
	put 0644 "$deploy/avgpiped.sysusers.conf" "$PREFIX/lib/sysusers.d/avgpiped.conf"
	put 0644 "$deploy/avgpiped.tmpfiles.conf" "$PREFIX/lib/tmpfiles.d/avgpiped.conf"
	put 0644 "$BIN/share/completions/bash" "$PREFIX/share/bash-completion/completions/avgpipectl"
	put 0644 "$BIN/share/completions/zsh" "$PREFIX/share/zsh/site-functions/_avgpipectl"
	put 0644 "$BIN/share/completions/fish" "$PREFIX/share/fish/vendor_completions.d/avgpipectl.fish"
	for page in "$BIN"/share/man/*; do
		put 0644 "$page" "$PREFIX/share/man/man${page##*.}/${page##*/}"
	done
	for directory in "${made[@]}"; do note "$directory"; done
	config=$DESTDIR/etc/avgpipe/avgpiped.yaml
	if [ -e "$config" ]; then
		echo "kept $config as it is"
	else
		install -v -D -m 0644 "$deploy/avgpiped.yaml" "$config"
	fi
}

uninstall_all() {
	[ -e "$DESTDIR$list" ] || fail "there is no $DESTDIR$list, which says what was installed; is PREFIX the one of make install?"
	grep -v '/$' "$DESTDIR$list" | while IFS= read -r file; do rm -fv -- "$DESTDIR$file"; done
	directories=$(grep '/$' "$DESTDIR$list" | sort -r || true)
	rm "$DESTDIR$list"
	for directory in $directories; do # each after those below it; what somebody else uses stays
		rmdir --ignore-fail-on-non-empty -- "$DESTDIR$directory" 2>/dev/null || true
	done
	echo "kept $DESTDIR/etc/avgpipe and $DESTDIR/var/lib/avgpipe"
}

action=${1:-}
case $action in
install) install_all ;;
uninstall) uninstall_all ;;
*) fail 'want install or uninstall' ;;
esac

# The running system, unless this is for a package.
if [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ]; then
	if [ "$action" = install ] && command -v systemd-sysusers >/dev/null; then
		systemd-sysusers
		systemd-tmpfiles --create avgpiped.conf
		echo 'installed; to start it now and at every boot: systemctl enable --now avgpiped'
		dropin=/etc/systemd/system/avgpiped.service.d/gpu.conf
		if [ -e /dev/nvidiactl ] && [ ! -e "$dropin" ]; then
			echo "this host has GPUs; to open them to the daemon: install -D -m 0644 $PREFIX/share/avgpipe/avgpiped-gpu.conf $dropin && systemctl daemon-reload"
		fi
	fi
	if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
