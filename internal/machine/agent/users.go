package agent

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"berth/activities/node"
	"berth/spec"
)

// A container whose user is not the image's gets an entry in /etc/passwd and /etc/group, and a home folder. The
// image stays as it is: the files are copies with one more line, mounted over the originals. docs/adr/0093 has
// the reasons.

const (
	homeFolder = ".berth/home" // below the workspace, whose disk space is measured
	homePath   = "/workspace/" + homeFolder
	userName   = "berth" // of the user without a name
)

// owner returns the user of the container; nil: the image's own. An error means that the control plane names a
// user in a form that this agent does not know.
func (c *claim) owner() (*spec.UserID, error) {
	if c.User == "" || c.User == spec.UserImage {
		return nil, nil
	}
	u, ok := spec.ParseUserID(c.User)
	if !ok {
		return nil, fmt.Errorf("this machine's agent knows no user %.100q of containers", c.User)
	}
	return &u, nil
}

// userNumber returns the user of the container as UID:GID, "" for the image's own.
func (c *claim) userNumber() string {
	if u, err := c.owner(); err == nil && u != nil {
		return u.String()
	}
	return ""
}

// own gives a new file or folder of a member to the container's user. Without the right to do so the file keeps
// its owner: its mode lets every user of the container read and change it.
func (c *claim) own(root *os.Root, name string) {
	if u, err := c.owner(); err == nil && u != nil {
		_ = root.Lchown(name, u.UID, u.GID)
	}
}

// settleUser gives the member's folders to the container's user, creates the home folder, and adds
// the accounts of the image to the container's mounts. It reports whether the user of the image is root, and this user
// is not. No folder is walked: files below were created for this user.
func (p *createPhase) settleUser(ctx context.Context, given *node.ContainerSpec) (imageRoot bool, err error) {
	u, err := p.claim.owner()
	if err != nil || u == nil {
		return false, err
	}
	given.User = u.String()
	p.claim.own(p.scratch.workspace, ".")
	p.claim.own(p.scratch.workspace, path.Dir(homeFolder))
	if p.scratch.checkpoint != nil {
		p.claim.own(p.scratch.checkpoint, ".")
	}
	if err := makeHome(p.scratch.workspace, *u); err != nil {
		return false, fmt.Errorf("create the home folder: %w", err)
	}
	found, err := p.runtime.Accounts(ctx, given.Image)
	if err != nil {
		return false, err
	}
	files := map[string][]byte{
		"passwd": withAccount(found.Passwd, u.UID, func(name string) string {
			return fmt.Sprintf("%s:x:%d:%d:job of Berth:%s:/bin/sh", name, u.UID, u.GID, homePath)
		}),
		"group": withAccount(found.Group, u.GID, func(name string) string {
			return fmt.Sprintf("%s:x:%d:", name, u.GID)
		}),
	}
	given.Mounts, given.Env = slices.Clone(given.Mounts), maps.Clone(given.Env) // a retry adds its own
	if _, set := given.Env["HOME"]; !set {
		given.Env["HOME"] = homePath
	}
	for name, content := range files {
		at := filepath.Join(p.scratch.dir, name)
		if err := p.accounts.place(at, content); err != nil {
			return false, err
		}
		given.Mounts = append(given.Mounts, node.Mount{Host: at, Target: "/etc/" + name, ReadOnly: true})
	}
	return found.Root && u.UID != 0, nil
}

// makeHome creates the home folder of the container's user, for this user alone where the agent may give it away.
func makeHome(workspace *os.Root, u spec.UserID) error {
	if err := workspace.MkdirAll(homeFolder, 0o700); err != nil {
		return err
	}
	mode := os.FileMode(0o700)
	if workspace.Lchown(homeFolder, u.UID, u.GID) != nil {
		mode = 0o777
	}
	return workspace.Chmod(homeFolder, mode)
}

// withAccount returns the lines of /etc/passwd or /etc/group with a line for the number, unless one has it. line
// returns the new line for a name that no other line has. Images without the file get root, too.
func withAccount(lines []byte, number int, line func(name string) string) []byte {
	if len(bytes.TrimSpace(lines)) == 0 {
		lines = []byte("root:x:0:0:root:/root:/bin/sh\n")
	}
	name := userName
	for one := range bytes.Lines(lines) {
		fields := bytes.Split(bytes.TrimSpace(one), []byte(":"))
		if len(fields) > 2 && string(fields[2]) == strconv.Itoa(number) {
			return lines
		}
		if string(fields[0]) == userName {
			name = userName + strconv.Itoa(number)
		}
	}
	lines = slices.Clone(lines)
	if lines[len(lines)-1] != '\n' {
		lines = append(lines, '\n')
	}
	return append(lines, line(name)+"\n"...)
}
