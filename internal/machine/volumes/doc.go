// Package volumes keeps folders on a machine that the jobs of one tenant write to and share, and that outlive each
// job: caches of package managers, of models and of compiled programs. docs/adr/0123 has the states and the races.
//
//	<dir>/<tenant>/<name>/data         the folder that containers mount, of the tenant's user, mode 0700
//	<dir>/<tenant>/<name>/volume.json  its size; the file's time is the last use
//	<dir>/.new-…                       a volume that is being created
//	<dir>/.gone-…                      a volume that is being removed
//
// Everything except the content of data belongs to the agent, with mode 0700. No container can change a name outside
// of data, and no other user of the machine can reach a file in it, even one with mode 0777.
//
// The content of data is hostile. The package never opens a file in it. It measures folders without following links
// (diskuse.Tree), and removes them without following links (os.RemoveAll). The one rule to know: a volume that a member
// uses is never removed, and no volume is removed in place. A removal renames the volume first, so that the next member
// finds an empty volume at once, however long the removal takes.
package volumes
