package runtimetest

import (
	"archive/tar"
	"slices"
	"time"

	"berth/activities/node"
	"berth/spec"
)

// userOfTheSpecRuns checks that the user and the group of a spec run the program and further commands.
func userOfTheSpecRuns(b *bench) {
	spec := b.spec("a", "id")
	if _, out := b.finish(spec); !slices.Equal(out, []string{"0:0"}) {
		b.t.Errorf("the user of the image is %q, want root", out)
	}
	spec = b.spec("b", "id")
	spec.User = "2000001000:2000001000"
	if _, out := b.finish(spec); !slices.Equal(out, []string{spec.User}) {
		b.t.Errorf("the user is %q, want %s", out, spec.User)
	}
}

// accountsOfAnImage checks that accounts are read without a container that stays, and that an image that is not
// here has none.
func accountsOfAnImage(b *bench) {
	first, err := b.Runtime.Accounts(b.ctx, b.Image)
	if err != nil {
		b.t.Fatal(err)
	}
	again, err := b.Runtime.Accounts(b.ctx, b.Image)
	if err != nil || string(first.Passwd) != string(again.Passwd) || string(first.Group) != string(again.Group) {
		b.t.Errorf("accounts are %+v, then %+v, %v", first, again, err)
	}
	if !first.Root || !again.Root { // the image names no user
		b.t.Errorf("the user of the image is not root: %v, %v", first.Root, again.Root)
	}
	_, err = b.Runtime.Accounts(b.ctx, b.Missing)
	wantError(b.t, err, node.ErrImageUnavailable, "accounts of an image that is not here")
}

// foldersAreGiven checks that a user who is not root creates files and folders at the paths that it was given, that
// these can be copied out, and that the folder of a path has the user's group and the mode that it had.
func foldersAreGiven(b *bench) {
	user := spec.UserID{UID: 2000001000, GID: 2000001001}
	made := []string{"/file", "/out", "/deep/er", "/etc/of-the-image"}
	commands := []string{"do", "write-file /file x", "make-folder /out", "write-file /out/x y", "make-folder /deep",
		"write-file /deep/er z", "write-file /etc/of-the-image x"}
	refused := b.spec("refused", commands...)
	refused.User = user.String()
	if c, out := b.finish(refused); c.ExitCode == 0 {
		b.t.Errorf("without a gift it exits %d and prints %q", c.ExitCode, out)
	}
	given := b.spec("given", commands...)
	given.User = user.String()
	given.Mounts = []node.Mount{{Host: b.t.TempDir(), Target: "/data", ReadOnly: true}}
	b.create(given)
	must(b.t, b.Runtime.GiveFolders(b.ctx, given.Name, []string{"/data/x"}, user))
	for range 2 {
		must(b.t, b.Runtime.GiveFolders(b.ctx, given.Name, append(made, "/testprog/below-a-file"), user))
	}
	for _, p := range made {
		_, err := b.Runtime.CopyOut(b.ctx, given.Name, p)
		wantError(b.t, err, node.ErrNoPath, "the gift creates nothing")
	}
	b.start(given.Name)
	if c := b.wait(given.Name); c.ExitCode != 0 {
		b.t.Errorf("it exits %d and prints %v", c.ExitCode, b.logs(given.Name, time.Time{}))
	}
	for _, p := range append(made, "/etc") {
		in, err := b.Runtime.CopyOut(b.ctx, given.Name, p)
		must(b.t, err)
		h, err := tar.NewReader(in).Next()
		must(b.t, err)
		must(b.t, in.Close())
		if h.Uid != user.UID || h.Gid != user.GID || p == "/etc" && h.Mode&0o7777 != 0o755 {
			b.t.Errorf("%s belongs to %d:%d and has mode %o", p, h.Uid, h.Gid, h.Mode)
		}
	}
	must(b.t, b.Runtime.GiveFolders(b.ctx, given.Name, made, user)) // it has ended, and stays as it is
	err := b.Runtime.GiveFolders(b.ctx, given.Name+"-none", made, user)
	wantError(b.t, err, node.ErrNoContainer, "a gift to no container")
}
