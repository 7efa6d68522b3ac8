package node

import (
	"context"

	"berth/spec"
)

// AccountReader reads the names of users in images.
type AccountReader interface {
	// Accounts returns /etc/passwd and /etc/group of an image that the machine has. A file that is absent, no
	// regular file or larger than MaxAccounts is empty. A repetition for the same content is cheap. It returns
	// ErrImageUnavailable if the image is not here, and ErrBadCommand if a file is a pipe or a device.
	Accounts(ctx context.Context, image string) (Accounts, error)
	// SweepAccounts removes the leftovers of calls of Accounts and Create that were cut off or not answered. It
	// leaves everything that a call might still use.
	SweepAccounts(ctx context.Context) error
}

// MaxAccounts is the size in bytes up to which Accounts reads a file.
const MaxAccounts = 1 << 20

// Accounts are the users and groups that an image names.
type Accounts struct {
	Passwd, Group []byte
	Root          bool // the image runs its programs as root: it names root, or no user
}

// FolderGiver changes owners of folders in containers.
type FolderGiver interface {
	// GiveFolders lets a user create a file or a folder at each of the paths, which are clean and
	// absolute, in a container that has not started; a container that has started stays as it is. A
	// folder at the path gets the user and its group as owners, or else the deepest folder above the
	// path that exists. Links of the image are followed. Unchanged stay the modes, times and contents
	// of folders, folders that every user may write, and paths that lie in mounts of the container's
	// spec or lead through a file. A repetition changes nothing.
	//
	// GiveFolders returns ErrBadImage if a link leads a mount into /proc, where none can be. It
	// returns ErrBadPath, and changes nothing, if the image leads a path into a read-only
	// mount or a mount into another one, or if all mounts and paths together take more than
	// MaxFolderSteps or more than a fixed time although the engine answers promptly. So an image
	// cannot make the call last. A read-only root cannot be changed.
	GiveFolders(ctx context.Context, name string, paths []string, u spec.UserID) error
}

// MaxFolderSteps is the number of different folders, files and links that GiveFolders looks at: enough for
// 64 outputs and 64 mounts in folders of their own.
const MaxFolderSteps = 256
