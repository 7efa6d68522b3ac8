// Package mounts puts shared folders of a machine where its container engine can mount them into
// containers: as read-only bind mounts below one folder of the agent.
//
// The engine takes paths, and a path may lead elsewhere by the time at which the engine follows it: a
// tenant who may write to a shared folder replaces a part of the path by a link. So the caller opens
// and checks the folder, and this package mounts the opened folder itself. The path that the engine
// gets is the agent's own, where no job can change a name.
//
// The mounts lie in a small file system in memory of their own:
//
//	<dir>/            tmpfs, mounted with the first mount, unmounted after the last
//	<dir>/NAME/0      a read-only mount, of the input with this index
//
// Three properties follow. An engine in another mount namespace does not find the path and refuses the
// container, where it would otherwise start the job on an empty folder. After a reboot nothing is left.
// And no folder that the agent deletes with its content contains a mount.
//
// The one rule to know: shared data is never deleted. Each mount is read-only for the agent as well,
// and the package removes names with rmdir(2) alone, which fails on a folder with content.
package mounts
