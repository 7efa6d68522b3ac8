package fakeruntime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"berth/activities/node"
	"berth/spec"
)

// Accounts returns the accounts of root, as of an image with this user alone. Programs of the fake run as the user
// of the test process.
func (e *execs) Accounts(ctx context.Context, image string) (node.Accounts, error) {
	f := e.fake
	if err := f.allow(ctx, Call{Method: "Accounts", Subject: image}); err != nil {
		return node.Accounts{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.here(image) {
		return node.Accounts{}, fmt.Errorf("read the accounts of image %s: %w", image, node.ErrImageUnavailable)
	}
	passwd, group := []byte("root:x:0:0:root:/root:/bin/sh\n"), []byte("root:x:0:\n")
	return node.Accounts{Passwd: passwd, Group: group, Root: true}, nil
}

// SweepAccounts does nothing: the fake reads accounts without a container.
func (e *execs) SweepAccounts(ctx context.Context) error {
	return e.fake.allow(ctx, Call{Method: "SweepAccounts"})
}

// GiveFolders adds a root folder to the container, which holds all files outside of mounts. Without it, the root is as
// of an image in which only root may write.
func (e *execs) GiveFolders(ctx context.Context, name string, paths []string, u spec.UserID) error {
	if err := e.fake.allow(ctx, Call{Method: "GiveFolders", Subject: name}); err != nil {
		return err
	}
	c, err := e.fake.find(name)
	if err != nil {
		return err
	}
	return c.addRoot(paths, u)
}

// addRoot creates the root folder of a container that has none, for paths outside of mounts.
func (c *container) addRoot(paths []string, u spec.UserID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	paths = slices.DeleteFunc(slices.Clone(paths), func(p string) bool {
		_, _, err := c.mount(p)
		return err == nil
	})
	if c.gone || c.state.State != node.ContainerCreated || c.spec.ReadOnlyRoot || len(paths) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "berth-fake-root-")
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		return err
	}
	c.root, c.owner = dir, u
	c.spec.Mounts = append(c.spec.Mounts[:len(c.spec.Mounts):len(c.spec.Mounts)], node.Mount{Host: dir, Target: "/"})
	return nil
}

// dropRoot removes the root folder. The caller holds mu.
func (c *container) dropRoot() {
	if c.root != "" {
		_ = os.RemoveAll(c.root)
	}
}
