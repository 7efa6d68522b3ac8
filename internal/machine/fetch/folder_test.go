package fetch_test

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"berth/internal/machine/fetch"
	"berth/spec"
)

// opens opens a folder for a mount, as a job names it.
func (f *folder) opens(from string) (*os.File, error) {
	return f.s.Folder(f.t.Context(), spec.Input{From: from, To: "/data", Mode: spec.InputMount})
}

func TestOnlyFoldersInTheVolumeAreOpenedForMounts(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	if _, err := f.opens("file:///datasets/"); err == nil || !strings.Contains(err.Error(), "is empty on this machine") {
		t.Errorf("an empty volume: %v", err)
	}
	f.put("set/a.txt", "a")
	f.put("set/sub/b.txt", "b")
	outside := t.TempDir()
	f.link("set/sub", "inside")
	f.link(outside, "outside")
	f.link("../../..", "above")
	for from, file := range map[string]string{"file:///datasets/": "set", "file:///datasets/set/": "a.txt", "file:///datasets/inside/": "b.txt"} {
		got, err := f.opens(from)
		if err != nil {
			t.Errorf("%s: %v", from, err)
			continue
		}
		if names, err := got.Readdirnames(-1); err != nil || !strings.Contains(strings.Join(names, " "), file) {
			t.Errorf("%s has %q, %v", from, names, err)
		}
		_ = got.Close()
	}
	for from, says := range map[string]string{
		"file:///datasets/outside/": "leads out of the folder /datasets by a link", "file:///datasets/above/": "leads out of the folder /datasets by a link",
		"file:///datasets/set/a.txt/": "is a file", "file:///datasets/none/": "no such file or folder", "file:///other/": "this machine does not share the folder /other",
	} {
		_, err := f.opens(from)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), f.dir) {
			t.Errorf("%s: %v", from, err)
		}
	}
}

// A tenant replaces a part of the path by a link that leads out, again and again: each opened
// folder lies in the volume.
func TestNoSwappedLinkLeadsAMountOutOfTheVolume(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("set/inner/a.txt", "a")
	outside := t.TempDir()
	f.must(os.Mkdir(outside+"/inner", 0o700))
	f.link(outside, "link")
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// Each name is always something: the folder, or the link.
			if err := errors.Join(os.Rename(f.at("set"), f.at("was")), os.Rename(f.at("link"), f.at("set")),
				os.Rename(f.at("set"), f.at("link")), os.Rename(f.at("was"), f.at("set"))); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer swapping.Wait()
	defer close(stop)
	forbidden, err := os.Stat(outside + "/inner")
	f.must(err)
	for opened := 0; opened < 50; {
		got, err := f.opens("file:///datasets/set/inner/")
		if err != nil {
			_, refused := errors.AsType[fetch.Refused](err)
			_, changed := errors.AsType[fetch.Changed](err) // the kernel saw a rename on its way
			if !refused && !changed {
				t.Fatal(err)
			}
			continue
		}
		info, err := got.Stat()
		_ = got.Close()
		if err != nil || os.SameFile(info, forbidden) {
			t.Fatalf("a folder outside was opened: %v, %v", info, err)
		}
		opened++
	}
}
