#!/bin/busybox sh
# The first process of a qemu guest. Its root is the host's own tree, read-only, below what the packages add and a tmpfs;
# so the checkout and its Python lie where they lie on the host. Then it runs /out/run.sh.
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules.list); do insmod "/modules/$module" 2>/dev/null; done
options=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o "$options,ro,cache=loose" host /lower || poweroff -f
mount -t 9p -o "$options,ro,cache=loose" over /over || poweroff -f
mount -t tmpfs -o size=80% rw /rw
mkdir -p /rw/upper /rw/work
mount -t overlay -o lowerdir=/over:/lower,upperdir=/rw/upper,workdir=/rw/work root /new || poweroff -f
mkdir -p /new/out
mount -t 9p -o "$options,cache=none" out /new/out || poweroff -f
for folder in proc sys dev; do mount --move "/$folder" "/new/$folder"; done
mount -t tmpfs run /new/run
mount -t tmpfs tmp /new/var/tmp
mkdir -p /new/dev/shm /new/dev/pts
mount -t tmpfs -o size=60% shm /new/dev/shm
mount -t devpts pts /new/dev/pts
exec switch_root /new /bin/bash /out/run.sh
