// Package archive packs folders and unpacks them again on machines that do not
// trust the sender: a tar, compressed by zstd, with the sha256 of the tar itself as
// its address. The same content has the same address on every machine that packs it.
//
// The sender of an archive is unknown. Read validates each entry before its use, by
// the same rules on every side: the command line while it packs, the server during
// an upload, the machine while it unpacks. Only folders, regular files and symbolic
// links that stay inside are permitted; names are plain; sizes and counts are
// bounded. Unpack writes through os.Root alone, and creates links last, so that no
// write ever follows a link.
//
// The one rule to know: an error with the slug invalid_archive is about the content,
// and a repeat has the same result; every other error is about the transfer.
package archive
