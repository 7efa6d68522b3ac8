// Package archive packs folders and unpacks them again on machines that trust
// nobody: a tar, compressed by zstd, whose address is the sha256 of the tar
// itself. The same content has the same address wherever it was packed.
//
// Whoever sent an archive is a stranger. Read judges each entry before anything
// of it is used, by the same rules on every side: the command line while it
// packs, the server while an upload passes through, the machine while it
// unpacks. Only folders, regular files and symbolic links that stay inside
// exist; names are plain; all of it is bounded. Unpack writes through os.Root
// alone, and makes links last, so that nothing is ever written through one.
//
// The one rule to know: an error with the slug invalid_archive is about the
// content, and will be the same next time; every other one is about the way it
// came.
package archive
