#!/bin/bash
# The first process of a user-mode kernel, on the host's own root, read-only: builds the same tree as init.sh does under
# qemu, and runs /out/run.sh. OVER and OUT are the host's folders of those names.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs -o size=80% made /mnt
mkdir -p /mnt/{lower,over,rw/upper,rw/work,new}
mount -t hostfs -o / none /mnt/lower
mount -t hostfs -o "$OVER" none /mnt/over
new=/mnt/new
mount -t overlay -o lowerdir=/mnt/over:/mnt/lower,upperdir=/mnt/rw/upper,workdir=/mnt/rw/work root $new
mkdir -p $new/out
mount -t hostfs -o "$OUT" none $new/out
mount -t proc proc $new/proc
mount -t sysfs sys $new/sys
mount -t devtmpfs dev $new/dev
mkdir -p $new/dev/shm $new/dev/pts
mount -t tmpfs -o size=60% shm $new/dev/shm
mount -t devpts pts $new/dev/pts
mount -t tmpfs run $new/run
mount -t tmpfs tmp $new/var/tmp
exec chroot $new /bin/bash /out/run.sh
